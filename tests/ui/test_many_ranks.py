"""A thousand ranks on the screen: what the engine is asked for, and where rows go on."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import psutil
import pytest
from textual.message import Message
from textual.pilot import Pilot

from pardbg.analysis.answers.hang import Hang
from pardbg.analysis.findings.finding import Finding
from pardbg.render.draw.cells import Picture, Segment, line
from pardbg.ui.app import PardbgApp
from pardbg.ui.engine import pace
from pardbg.ui.engine.cursor import TimeCursor
from pardbg.ui.engine.frame_maker import joined, stopped
from tests.ui import sample
from tests.ui.fakes import app_on, text_of, until

RANKS = 1024


async def rows_of(app: PardbgApp, pilot: Pilot[None]) -> None:
    """Rows instead of the mesh."""
    await until(lambda: "mesh  dp 1024" in text_of(app), "the mesh")
    await pilot.press("g")


async def test_the_mesh_asks_for_the_chosen_rank_alone_and_goes_with_the_keys() -> None:
    """All squares are drawn from rows that are made in turn. 1,024 ranks of no group: one axis,
    of which 30 rows stand under each other, and 35 columns of them beside each other."""
    app = app_on(sample.snapshot_ddp(RANKS))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: "mesh  dp 1024" in text_of(app), "the mesh")
        assert app.engine._want.viewport.ranks == {app.main.shared.rank}
        app.main.shared.rank = 0
        await pilot.press("j", "l")
        chosen = app.main.shared.rank
        assert 16 < chosen < 64  # the next row, and a column on
        await pilot.press("h", "k")
        assert app.main.shared.rank == 0
        await pilot.press("p")
        await until(lambda: "memory" in text_of(app), "the next measure")
        await pilot.press("slash", *"rank", "escape")
        await pilot.press("escape", "g")
        await until(lambda: len(app.main.page.rows_in_view()) > 20, "rows")


async def test_the_engine_is_asked_for_the_rows_in_sight() -> None:
    app = app_on(sample.snapshot_ddp(RANKS))

    def seen() -> bool:
        """Every row on the screen and the chosen one, and few others."""
        asked, shown = app.engine._want.viewport.ranks, app.main.page.rows_in_view()
        return asked is not None and len(asked) < 300 and {app.main.shared.rank, *shown} <= asked

    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: app.main.shared.frame is not None, "the first frame")
        await rows_of(app, pilot)
        await until(lambda: len(app.main.page.rows_in_view()) > 20 and seen(), "the rows in sight")
        assert app.engine._want.viewport.sections == {"courses"}
        app.main.page.scroll_rows(500)
        app.main.want_page()
        assert seen() and app.main.page.rows_in_view()[0] >= 500
        asked = {
            "4": {"collectives", "p2p"},
            "5": {"traffic", "memory"},
            "6": {"memory", "traffic"},
        }
        for key, parts in asked.items():
            await pilot.press(key)
            assert app.engine._want.viewport.sections == parts


@pytest.mark.parametrize("size", ((80, 24), (120, 40), (200, 60)), ids=str)
async def test_where_rows_go_on_no_row_is_cut(size: tuple[int, int]) -> None:
    app = app_on(sample.snapshot_ddp(RANKS))
    async with app.run_test(size=size) as pilot:
        await rows_of(app, pilot)
        await until(lambda: " more" in text_of(app), "rows go on")
        (hint,) = [row for row in text_of(app).split("\n") if "▼" in row and "more" in row]
        pane = app.main.page
        assert hint.strip() == f"▼ {RANKS - pane.top - pane.room + 1} more"


async def test_the_chosen_row_stays_in_sight_when_the_room_shrinks() -> None:
    """As when a finding takes its line under the rows; unless the reader has scrolled away. What is
    far off comes with what is around it."""
    app = app_on(sample.snapshot_ddp(RANKS))
    async with app.run_test(size=(80, 24)):
        await until(lambda: app.main.shared.frame is not None, "the first frame")
        pane = app.main.page
        rows = tuple(line(Segment(str(number))) for number in range(RANKS))
        foot = tuple(line(Segment("worst")) for _ in range(4))
        pane.show_picture(Picture((), rows, focus=800))
        room = pane.room
        assert pane.top == 800 - room // 2
        for focus in range(800, pane.top + room - 1):  # down to the last line but one
            pane.show_picture(Picture((), rows, focus=focus))
        assert pane.top == 800 - room // 2
        pane.show_picture(Picture((), rows, foot, focus=focus))
        assert pane.room == room - 4 and pane.top <= focus < pane.top + pane.room
        pane.scroll_rows(-200)
        at = pane.top
        pane.show_picture(Picture((), rows, foot * 2, focus=focus))
        assert pane.top == at


class _Time:
    """The times that pace asks for."""

    def __init__(self) -> None:
        self.now = self.cpu = 0.0

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.cpu


def test_partial_frames_of_a_live_run_and_pieces_between_them_leave_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of many ranks: after a whole frame the next glance after 1 s, then each after 8 times what
    one takes. A piece of a look at all ranks comes after as long as the last one took; the next
    look after 6 times what all took; a fourth of that where ranks stopped. Of few ranks whole
    frames alone, each after 12 times what one takes, and no pieces where they are quick."""
    clock = _Time()
    monkeypatch.setattr(pace, "time", clock)
    paced = pace.Pace(TimeCursor())

    def spend(cost: float) -> None:
        clock.now, clock.cpu = clock.now + cost, clock.cpu + cost

    def frame(cost: float, *, whole: bool, many: bool = True) -> None:
        with paced.frame():
            spend(cost)
        paced.note(whole=whole, many=many)

    def waits(ready: Callable[[], bool]) -> float:
        begun = clock.now
        while not ready():
            clock.now += 0.01
        waited, clock.now = clock.now - begun, begun
        return round(waited, 1)

    frame(0.05, whole=True)
    clock.now += 100
    assert not paced.piece_is_due(urgent=True)
    frame(1.0, whole=True)
    assert waits(lambda: paced.is_time(False)) == 1
    clock.now += 1
    frame(0.2, whole=False)
    assert waits(lambda: paced.is_time(False)) == 1.6
    with paced.piece() as enough:
        spend(0.08)
        assert not enough()
        spend(0.12)
        assert enough()
    assert waits(lambda: paced.piece_is_due(urgent=False)) == 0.2
    with paced.piece():
        spend(0.3)
    paced.round_over()
    assert waits(lambda: paced.piece_is_due(urgent=False)) == 3.5
    assert waits(lambda: paced.piece_is_due(urgent=True)) == 0.9
    frame(1.0, whole=True, many=False)
    assert waits(lambda: paced.is_time(False)) == 12


def test_a_rank_that_stops_is_looked_into_soon() -> None:
    """A wait is nothing new; a rank that is held, or goes on again, is, and so is a hang."""
    runs = sample.snapshot_ddp(4)
    waits = replace(runs, ranks=(replace(runs.ranks[0], state="waiting"), *runs.ranks[1:]))
    held = replace(runs, ranks=(replace(runs.ranks[0], state="held"), *runs.ranks[1:]))
    assert stopped(runs) == stopped(waits) != stopped(held)
    hang = Hang("hang", "error", (2,), (0, 1, 3), "all_reduce", None, 0, None, "")
    later = replace(runs, hang=replace(hang, since_ns=5))
    assert stopped(runs) != stopped(replace(runs, hang=hang)) == stopped(later)


def test_a_frame_comes_at_once_for_a_rank_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 2 s, soon after that, and each further second, whatever the pace says, until a hang is
    shown; and where one looks back never."""
    shown = sample.snapshot_ddp(RANKS)
    app = app_on(shown)
    engine, store, frames = app.engine, app.engine._store, list[Message]()
    monkeypatch.setattr(engine, "_post", frames.append)
    engine._turn()
    assert frames
    monkeypatch.setattr(engine._pace, "is_time", lambda _awaited: False)

    def comes(seconds: float) -> bool:
        frames.clear()
        store.states.stood_ns = int(seconds * 1e9)
        engine._turn()
        return bool(frames)

    waited = (0.5, 1.9, 2.1, 2.3, 2.6, 2.9, 3.0, 0, 2.5)
    assert [comes(s) for s in waited] == [0, 0, 1, 0, 1, 0, 1, 0, 1]
    store.show(
        replace(shown, hang=Hang("hang", "error", (3,), (0,), "all_reduce", None, 0, None, ""))
    )
    assert [comes(s) for s in (3, 4)] == [1, 0]
    store.show(shown)
    engine.wake()
    assert comes(0) and comes(2)
    app.cursor.seek(shown.t_begin_ns)
    assert not comes(3)


def test_what_is_found_at_once_stands_beside_what_was_found_before() -> None:
    """The same finding once, as it is now; the worst first."""
    note = Finding("small-messages", "info", 5, "")
    old = Finding("missing-rank", "error", 5, "", culprits=(2,))
    other = Finding("late-rank", "warning", 5, "", culprits=(2,))
    new = replace(old, t_ns=9)
    assert joined((new,), (note, old, other)) == (new, other, note)
    assert joined((), (note, old)) == (note, old)


def test_freed_pages_go_back_to_the_system() -> None:
    """200 MB in pieces that glibc keeps in its heap, between them 20 that stay: of the rest at
    least half goes."""
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("another C library")
    arrays = [np.ones(100_000, np.uint8) for _ in range(2000)]
    kept = arrays[::100]
    del arrays
    before = psutil.Process().memory_info().rss
    pace.give_back()
    assert before - psutil.Process().memory_info().rss > 100e6
    assert len(kept) == 20
