"""The real app on sessions of ``sessions/``: where it opens, goes, and what it says there."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from pardbg.analysis.answers import snapshot
from pardbg.lab import recipes
from pardbg.session.navigation import travel
from pardbg.session.navigation.replay import ReplayClock
from pardbg.session.reader import open_session
from pardbg.store.store import Store
from pardbg.ui.app import PardbgApp
from pardbg.ui.engine import loading
from pardbg.ui.engine.cursor import TimeCursor
from tests.ui.fakes import shows, text_of, until
from tests.ui.recorded import SESSIONS, replayed, type_


async def test_a_job_that_hung_opens_where_it_hangs_and_says_so_on_every_page() -> None:
    async with replayed("fault-missing-rank", (120, 40)) as (app, pilot):
        await shows(app, "opened at the first error (missing-rank)")
        for key in "123456789":
            await pilot.press(key)
            await shows(app, "missing-rank  r2 ")
            assert "missing_rank.py:45" in text_of(app)
        await pilot.press("home")
        await until(lambda: "missing-rank  r2 " not in text_of(app), "no hang at the begin")


async def test_at_the_end_of_a_hang_the_timeline_shows_its_begin_and_how_much_follows() -> None:
    """Rank 2 stood in a send, the others in all_reduce #21: rank 1 until torchrun ended it, the
    others until it failed. Nothing began after that."""
    async with replayed("fault-unpaired-send", (120, 40)) as (app, pilot):
        await shows(app, "opened at the first error (unpaired-send)")
        await pilot.press("3", "end")
        await until(lambda: app.main.shared.frame.snapshot.hang.until_ns is not None, "the end")
        frame = app.main.shared.frame
        hang = frame.snapshot.hang
        assert frame.lanes_t0_ns < hang.since_ns < frame.lanes_t1_ns
        boxes = [frame.lanes[rank]["comm"][-1] for rank in range(4)]
        assert all(frame.lanes_t1_ns < box.t1_ns <= hang.until_ns for box in boxes)
        assert boxes[1].is_open and boxes[1].t1_ns == hang.until_ns


async def test_a_healthy_recording_opens_at_the_end_of_its_last_step() -> None:
    async with replayed("ddp", (80, 24)) as (app, _):
        last = max(app._store.procs.values(), key=lambda p: len(p.table("step"))).table("step")
        step = int(last.col("step")[-1])
        await until(lambda: app.main.shared.frame.snapshot.step == step, "its last step")
        assert "opened at" not in text_of(app)


async def test_the_last_steps_of_ranks_are_as_many_after_another_page_was_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a page that is turned to only a few steps are made at once, then the others."""
    monkeypatch.setattr(snapshot, "SOON", 1)
    async with replayed("fault-diverge", (120, 40)) as (app, pilot):
        await shows(app, "last 11 steps")
        await pilot.press("9", "end")
        await shows(app, "step 19 loss")
        await pilot.press("1")
        await shows(app, "last 20 steps")


async def test_a_warning_is_what_a_recording_opens_at_and_it_is_one() -> None:
    """A straggler is there at ever newer collectives: that is one finding, seen early."""
    async with replayed("fault-straggler", (120, 40)) as (app, pilot):
        await shows(app, "opened at the first warning (straggler)")
        await until(lambda: app.main.shared.frame.snapshot.findings, "the finding is there")
        snapshot = app.main.shared.frame.snapshot
        assert [f.kind for f in snapshot.findings if f.severity != "info"] == ["straggler"]
        assert snapshot.step < 19, "before the end of the run"
        assert app.main.shared.rank == 2, "the culprit is selected"
        await pilot.press("8")
        await shows(app, "culprit rank 2")
        await shows(app, "▲ 1 warning ")


async def test_goto_finding_lands_where_the_finding_is_there() -> None:
    async with replayed("fault-nan", (120, 40)) as (app, pilot):
        await shows(app, "opened at the first error (nan)")
        await pilot.press("home")
        await type_(pilot, "goto finding 1")
        await until(lambda: app.main.active == "findings", "the findings page")
        await shows(app, "✗ nan")
        await shows(app, "first non-finite loss: rank 2, step 5")


@pytest.mark.parametrize("key", ["1", "3", "4", "6"])
async def test_the_end_shows_something(key: str) -> None:
    """Four seconds after the last thing a rank did."""
    async with replayed("fault-nan", (120, 40)) as (app, pilot):
        await pilot.press("end", key)
        await until(lambda: app.main.shared.frame.snapshot.run.exit_code == 0, "the end")
        words = {"1": "5.746 → NaN", "3": "no record for 4.11 s",
                 "4": "all_reduce", "6": "resident set"}  # fmt: skip
        await shows(app, words[key])
        if key == "3":
            await shows(app, "backward")


async def test_up_and_down_go_through_the_frames_of_a_recorded_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The recording was made where recipes lay in another folder: their source is looked for below
    # the working directory.
    (tmp_path / "pardbg").mkdir()
    (tmp_path / "pardbg/recipes").symlink_to(Path(recipes.__file__).parent)
    monkeypatch.chdir(tmp_path)
    async with replayed("fault-missing-rank", (120, 40)) as (app, pilot):
        await shows(app, "opened at the first error")
        await pilot.press("7")
        await shows(app, "missing_rank.py:45 wait_for")  # whom the others wait for
        await shows(app, "r2, frame 0 of 4")
        await shows(app, "▶         time.sleep(0.1)")
        await type_(pilot, "up")
        await shows(app, "missing_rank.py:39 train")
        await shows(app, "r2, frame 1 of 4")
        await shows(app, "▶             wait_for(RESULT)")
        await type_(pilot, "down")
        await shows(app, "▶         time.sleep(0.1)")
        await pilot.press("j")  # a rank that waits, in torch
        await shows(app, "planted.py:75 report_mean")
        await shows(app, "r3, frame 0 of ")
        await type_(pilot, "frames all")
        await shows(app, "distributed_c10d.py")
        await type_(pilot, "up")
        await type_(pilot, "up")
        await shows(app, "planted.py:75 report_mean")
        await shows(app, "r3, frame 2 of ")
        await type_(pilot, "frames own")
        await shows(app, "r3, frame 0 of ")


async def test_a_box_of_the_timeline_is_chosen_by_key_and_by_click() -> None:
    async with replayed("1f1b", (120, 40)) as (app, pilot):
        await type_(pilot, "goto step 5")
        await pilot.press("3", "plus", "plus", "enter")
        await shows(app, "waited for r")
        chosen = text_of(app).partition("┌")[2][:40]
        await pilot.press("k", "h")
        await until(lambda: text_of(app).partition("┌")[2][:40] != chosen, "another box")
        rows = [line.text for line in app.screen._compositor.render_strips(app.size)]
        y = next(y for y, row in enumerate(rows) if "compute" in row and "B6" in row)
        await pilot.click(offset=(rows[y].index("B6"), y))
        await until(lambda: "B6  " in text_of(app).partition("┌")[2][:12], "the box under it")
        await pilot.press("j", "escape")
        await until(lambda: "┌" not in text_of(app), "no box")


async def test_keys_go_to_where_a_finding_is_there_and_back_before_it() -> None:
    """Not to where it began: a hang is one only once it has lasted."""
    async with replayed("fault-missing-rank", (120, 40)) as (app, pilot):
        await shows(app, "opened at the first error (missing-rank)")
        await type_(pilot, "unit finding")
        shared, cursor = app.main.shared, app.cursor
        opened = cursor.at(0)
        for key, at in (("home", None), ("full_stop", opened), ("end", None), ("comma", opened)):
            await pilot.press(key)
            await until(lambda at=at: at is None or cursor.at(0) == at, f"{key} to {at}")  # type: ignore[misc]
            await until(
                lambda key=key: (shared.frame.snapshot.hang is None) is (key == "home"), key
            )  # type: ignore[misc]


async def test_collectives_by_what_cost_most_waiting() -> None:
    async with replayed("moe", (120, 40)) as (app, pilot):
        await type_(pilot, "goto step 5")
        await pilot.press("4", "g")
        await shows(app, "most waiting first")
        costs = [row.wait_ns or 0 for row in app.main.shared.frame.snapshot.collectives]
        assert f"{max(costs) / 1e6:.0f} ms" in text_of(app)
        await pilot.press("g")
        await until(lambda: "most waiting first" not in text_of(app), "by time again")


async def test_a_finding_stands_beside_every_rank_and_what_ran_up_to_it() -> None:
    async with replayed("fault-straggler", (120, 40)) as (app, pilot):
        await type_(pilot, "goto step 2")
        await pilot.press("8")
        await shows(app, "to come: ")  # what a recording has behind the cursor, dim
        await type_(pilot, "goto 80%")
        for text in ("every rank", "around it", "culprit rank 2", "backward"):
            await shows(app, text)
        frame = app.main.shared.frame
        assert frame.lanes_t1_ns == frame.snapshot.findings[0].t_ns


async def test_what_lies_ahead_in_a_recording_is_on_the_charts_and_dim() -> None:
    async with replayed("moe", (120, 40)) as (app, pilot):
        await type_(pilot, "goto step 3")
        await until(lambda: app.main.shared.frame.ahead is not None, "the whole course")
        ahead = app.main.shared.frame.ahead
        assert [step for step, _ in ahead.times] == list(range(9)) and len(ahead.losses) == 9
        page = app.main.page
        await until(lambda: app.main.shared.frame.snapshot.step == 3, "step 3")
        dim = [s for row in page.shown for s in row
               if s.style == "faint" and any("⠀" < char <= "⣿" for char in s.text)]  # fmt: skip
        assert dim, text_of(app)


async def test_n_goes_through_what_the_output_contains() -> None:
    async with replayed("moe", (80, 24)) as (app, pilot):
        await type_(pilot, "goto step 5")
        await pilot.press("9", "slash", *"loss", "enter")
        await shows(app, "filter “loss”")
        await pilot.press("n")
        await shows(app, "compute is paced")  # all lines are there again
        await shows(app, "“loss” ")
        await pilot.press("n")
        await shows(app, "1 of 5")
        await pilot.press("N")
        await shows(app, "5 of 5")
        await pilot.press("escape")
        await until(lambda: "loss”" not in text_of(app), "the search is over")


async def test_the_end_asked_for_while_the_opening_is_looked_for_is_where_one_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once all is read, where a recording opens is chosen again; a key may come meanwhile."""
    path = SESSIONS / "fault-nan.mcap"
    with closing(open_session(path)) as source:
        app = PardbgApp(source, None, title=path.name, replay=ReplayClock())

        def opening(store: Store, nth: int) -> int | None:
            if source.finished:
                app.cursor.follow()
            return travel.opening(store, nth)

        monkeypatch.setattr(loading, "opening", opening)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(lambda: (f := app.main.shared.frame) is not None and f.finished, "read")
            await shows(app, "■ ended")
            assert app.main.shared.frame.snapshot.t_ns == app.main.shared.frame.end_ns
            assert "opened at" not in text_of(app)
            await pilot.press("home")
            await until(lambda: app.main.shared.frame.snapshot.step in (None, 0), "the begin")


def test_the_end_of_a_recording_that_is_read_moves_on_with_it() -> None:
    """No file says where it ends that nobody has closed."""
    cursor = TimeCursor(ReplayClock())
    cursor.bounds(10, 100)
    assert cursor.open_at(40) and cursor.at(0) == 40
    cursor.follow()
    cursor.bounds(10, 300)
    assert cursor.at(0) == 300 and not cursor.open_at(40)
    cursor.seek(50)
    cursor.bounds(10, 400)
    assert cursor.at(0) == 50
