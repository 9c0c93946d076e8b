"""Several pipelines in one run: which one the Pipeline page shows, and the keys that choose."""

from __future__ import annotations

from dataclasses import replace

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.pipeline.mesh import PipelineName
from pardbg.render.draw.cells import plain
from pardbg.render.pages.pipeline.ledger import choices
from tests.ui.fakes import app_on, text_of, until
from tests.ui.sample import snapshot_1f1b


def two_pipelines(index: int = 0) -> Snapshot:
    """Ranks 0 to 3 and 4 to 7; the second one has the larger bubble."""
    made = snapshot_1f1b(p=8)
    assert made.pipeline is not None
    names = (
        PipelineName("dp=0", (0, 1, 2, 3), 0.25), PipelineName("dp=1", (4, 5, 6, 7), 0.31)
    )  # fmt: skip
    return replace(made, pipeline=replace(made.pipeline, index=index), pipelines=names)


async def test_brackets_choose_the_pipeline_and_its_first_rank() -> None:
    app = app_on(two_pipelines(), start="pipeline")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: app.main.shared.frame is not None, "first frame")
        assert "2 pipelines  ▸dp=0 25.0%" in text_of(app)
        await pilot.press("right_square_bracket")
        asked = app.engine._store.pipelines_of
        await until(lambda: asked[-1] == 4, "the pipeline of rank 4 asked for")
        assert app.main.shared.rank == 4
        await pilot.press("left_square_bracket")  # this sample still says 0: one back is the last
        await until(lambda: app.main.shared.rank == 4, "round the end")


async def test_without_several_the_keys_say_what_they_are_for() -> None:
    app = app_on(snapshot_1f1b(), start="pipeline")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: app.main.shared.frame is not None, "first frame")
        await pilot.press("left_square_bracket")
        await until(lambda: "go through the pipelines (on 2)" in text_of(app), "the hint")


def test_the_row_names_the_worst_and_keeps_the_chosen_one_in_sight() -> None:
    (row,) = choices(two_pipelines(), 100)
    assert plain(row).startswith(" 2 pipelines  ▸dp=0 25.0%  dp=1 31.0%")
    assert plain(row).rstrip().endswith("worst dp=1 [ ] another")
    # 40 of them at 80 cells: the chosen one and what fits beside it
    many = tuple(PipelineName(f"dp={i}", (2 * i, 2 * i + 1), 0.2 + i / 1000) for i in range(40))
    base = two_pipelines(20)
    (row,) = choices(replace(base, pipelines=many), 80)
    text = plain(row)
    assert "▸dp=20 22.0%" in text and "worst dp=39" in text and text.count("…") == 2
    assert len(text) == 80
    assert choices(snapshot_1f1b(), 80) == ()


async def test_a_moment_is_analysed_once_whatever_page_shows_it() -> None:
    app = app_on(two_pipelines(), live=False)
    asked = app.engine._store.pipelines_of
    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: (f := app.main.shared.frame) is not None and f.finished, "read")
        before = len(asked)
        await pilot.press("3")
        await until(lambda: app.main.shared.frame.lanes, "the timeline's lanes")
        await pilot.press("2")
        await until(lambda: app.main.shared.frame.schedule, "the plan")
        assert len(asked) == before  # ranks 0 to 3 have the pipeline that was shown
        await pilot.press("right_square_bracket")
        await until(lambda: len(asked) > before, "another pipeline")
        assert asked[before] == 4
