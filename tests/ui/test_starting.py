"""A job that starts: what is known so far, and no page that looks broken or empty."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pardbg.analysis.answers.ranks import Activity
from pardbg.analysis.answers.snapshot import NO_TRAFFIC, Snapshot
from pardbg.analysis.base.run import OutputLine
from pardbg.render.draw.cells import line_width, plain
from pardbg.render.frame.panels import is_starting, starting
from pardbg.ui.engine.feed import Frame
from pardbg.ui.screens.base import Shared
from pardbg.ui.screens.row_pages import FindingsPage
from pardbg.ui.screens.timeline import TimelinePage
from tests.ui import sample
from tests.ui.fakes import app_on, shows, text_of, until

S = 1_000_000_000
IN = "init_process_group"


def young(here: int, size: int, live: bool = True) -> Snapshot:
    """``here`` of ``size`` ranks are in their first call, rank 0 for 1.8 s."""
    made = sample.snapshot_ddp(4)
    ranks = tuple(
        replace(row, rank=at, now=Activity("in", IN), since_ns=made.t_ns - 9 * S // 5, step=None,
                step_ns=(), pid=22062 + at, host="node0")
        for at, row in enumerate(made.ranks * 16)
    )[:here]  # fmt: skip
    return replace(
        made, live=live, ranks=ranks, findings=(), hang=None, steps=(), loss_history=(), p2p=(),
        collectives=(), memory=(), traffic=NO_TRAFFIC, pipeline=None, step=None,
        run=replace(made.run, world_size=size, exit_code=None),
    )  # fmt: skip


@pytest.mark.parametrize("key", "1234568")
async def test_every_page_says_who_is_here_and_what_it_will_have(key: str) -> None:
    app = app_on(young(2 if key != "1" else 0, 4))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        if key in "3":  # lanes are drawn of the ranks that are here
            return
        await until(lambda: "meanwhile" in text_of(app), "what is known so far")
        rows = text_of(app).split("\n")
        assert app.main.page.lacks[:30] in text_of(app)
        named = [row.split()[1] for row in rows if row.startswith((" ✓ r", " ○ r"))]
        assert named == (["r0–3"] if key == "1" else ["r0", "r1", "r2,3"])
        assert app.engine._want.output is not None


def test_a_rank_that_is_here_has_its_process_and_what_it_does() -> None:
    picture = starting(young(2, 4), 80, 20, "Nothing yet.", sample.output())
    (first,) = [plain(row) for row in picture.body if plain(row).startswith(" ✓ r0")]
    assert first.split() == ["✓", "r0", "pid", "22062", "on", "node0", "in", IN, "for", "1.80", "s"]
    assert sample.output()[-1].text[:20] in "\n".join(map(plain, picture.body))


@pytest.mark.parametrize(("cells", "rows"), [(80, 20), (120, 36)])
def test_of_many_ranks_as_many_as_fit_are_listed_and_all_are_counted(cells: int, rows: int) -> None:
    picture = starting(young(60, 1024), cells, rows, "Nothing yet. " * 20)
    shown = [*picture.head, *picture.body]
    assert len(shown) <= rows and all(line_width(row) <= cells for row in shown)
    listed = [row for row in map(plain, shown) if "pid" in row]
    hidden, missing = (row.split()[1] for row in map(plain, shown) if row[:4] in (" ✓ r", " ○ r")
                       and "pid" not in row)  # fmt: skip
    assert hidden == f"r{len(listed)}–59" and missing == "r60–1023"


def test_a_job_starts_until_a_step_has_ended_or_the_job_has() -> None:
    begun = young(4, 4)
    stepped = replace(begun, ranks=(replace(begun.ranks[0], step_ns=(S,)), *begun.ranks[1:]))
    assert is_starting(begun) and is_starting(young(2, 4)) and not is_starting(stepped)
    ended = replace(begun, live=False, t_ns=begun.t_end_ns)
    assert not is_starting(ended)
    assert not is_starting(replace(begun, run=replace(begun.run, exit_code=1)))


def test_a_note_does_not_hide_who_is_here() -> None:
    page, early = FindingsPage(Shared()), young(2, 4)
    found = sample.snapshot_ddp(4).findings[0]
    assert page.has_nothing(replace(early, findings=(replace(found, severity="info"),)))
    assert not page.has_nothing(replace(early, findings=(found,)))


@pytest.mark.parametrize(
    ("key", "label", "made"),
    [("8", "go there", young(2, 4)), ("9", "filter", young(2, 4)),
     ("2", "what-if", replace(sample.snapshot_ddp(), live=True))],
)  # fmt: skip
async def test_keys_of_a_page_are_not_offered_while_it_shows_nothing_for_them(
    monkeypatch: pytest.MonkeyPatch, key: str, label: str, made: Snapshot
) -> None:
    """The page of a job that starts does not list its notes."""
    note = replace(sample.snapshot_ddp().findings[0], severity="info")
    monkeypatch.setattr(sample, "output", lambda: ())
    app = app_on(replace(made, findings=(note,)))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press(key)
        await until(lambda: app.main.page.display and app.main.page.size.width, "the page")
        await pilot.pause()
        assert label not in text_of(app).split("\n")[-1]


async def test_output_is_shown_up_to_the_moment_of_the_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Records of a live run may lag behind; the header's step is of the newest state."""
    made = replace(sample.snapshot_ddp(), live=True)
    late = OutputLine(made.t_ns + S, 0, "stdout", "the newest line")
    monkeypatch.setattr(sample, "output", lambda: (late,))
    app = app_on(replace(made, t_end_ns=made.t_ns + 2 * S), start="output")
    async with app.run_test(size=(80, 24)):
        await shows(app, "the newest line")


def test_ranks_that_have_run_nothing_yet_have_no_lanes() -> None:
    """The page then says who is here, and asks for the newest line of output."""
    early, spans = young(2, 4), sample.lanes(0, S, 2)

    def page(lanes: Any) -> TimelinePage:
        frame = SimpleNamespace(snapshot=early, lanes=lanes, lanes_t0_ns=0, lanes_t1_ns=S)
        return TimelinePage(Shared(frame=cast(Frame, frame)))

    assert page({0: {}, 1: {}}).has_nothing(early)
    assert not page(spans).has_nothing(early)
