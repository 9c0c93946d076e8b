"""A thousand ranks on the screen: what the engine is asked for, and where rows go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pardbg.render.draw.cells import Picture, Segment, line
from pardbg.ui.engine import pace
from pardbg.ui.engine.cursor import TimeCursor
from tests.ui import sample
from tests.ui.fakes import app_on, text_of, until

RANKS = 1024


async def test_the_engine_is_asked_for_the_rows_in_sight() -> None:
    app = app_on(sample.snapshot_ddp(RANKS))

    def seen() -> bool:
        """Every row on the screen and the chosen one, and few others."""
        asked, shown = app.engine._want.ranks, app.main.page.rows_in_view()
        return asked is not None and len(asked) < 300 and {app.main.shared.rank, *shown} <= asked

    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: app.main.shared.frame is not None, "the first frame")
        await until(lambda: len(app.main.page.rows_in_view()) > 20 and seen(), "the rows in sight")
        assert app.engine._want.parts == frozenset()
        app.main.page.scroll_rows(500)
        app.main.want_page()
        assert seen() and app.main.page.rows_in_view()[0] >= 500
        asked = {
            "4": {"collectives"},
            "p": {"collectives", "p2p"},
            "5": {"traffic"},
            "6": {"memory"},
        }
        for key, parts in asked.items():
            await pilot.press(key)
            assert app.engine._want.parts == parts


@pytest.mark.parametrize("size", ((80, 24), (120, 40), (200, 60)), ids=str)
async def test_where_rows_go_on_no_row_is_cut(size: tuple[int, int]) -> None:
    app = app_on(sample.snapshot_ddp(RANKS))
    async with app.run_test(size=size):
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


def test_glances_come_between_a_live_runs_whole_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many ranks: after a whole frame of 1 s the next glance after 1 s more, then each after 8
    times what one takes; whole ones after 12 times, or 3 where ranks stopped. Of few ranks whole
    ones alone."""
    clock = _Time()
    monkeypatch.setattr(pace, "time", clock)
    paced = pace.Pace(TimeCursor())

    def frame(cost: float, *, whole: bool, many: bool = True, hasty: bool = False) -> None:
        with paced.frame():
            clock.now, clock.cpu = clock.now + cost, clock.cpu + cost
        paced.was(whole=whole, many=many, hasty=hasty)

    def waits(ready: Callable[[], bool]) -> float:
        begun = clock.now
        while not ready():
            clock.now += 0.01
        waited, clock.now = clock.now - begun, begun
        return round(waited, 1)

    frame(1.0, whole=True)
    assert (waits(lambda: paced.is_time(False)), waits(lambda: paced.whole_is_due)) == (1, 12)
    clock.now += 1
    frame(0.2, whole=False)
    assert waits(lambda: paced.is_time(False)) == 1.6
    assert waits(lambda: paced.whole_is_due) == 10.8
    frame(0.2, whole=False, hasty=True)
    assert waits(lambda: paced.whole_is_due) == 1.6
    frame(1.0, whole=True, many=False)
    assert waits(lambda: paced.is_time(False)) == 12 and paced.whole_is_due
