"""The tick grid on the Pipeline page: g, cells, and back and forth by tick."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.pipeline.ticks.cell import TicksWant, ticks_shown
from pardbg.events.control_codes import Mode
from pardbg.events.control_facts import Breakpoint, Fact, Hit, Raised
from pardbg.render.draw.cells import plain
from pardbg.render.frame.stacks import Entry
from pardbg.render.pages.debug import DebugPageState
from pardbg.render.pages.pipeline.held_panels import held_panels
from pardbg.session.reader import load
from pardbg.ui.engine.feed import Frame
from pardbg.ui.screens.base import Shared
from pardbg.ui.screens.pipeline import PipelinePage
from tests.ui.fakes import FakePort, app_on, shows, text_of, until
from tests.ui.recorded import SESSIONS
from tests.ui.sample import held, snapshot_1f1b
from tests.ui.test_travel import at_ms, recorded, showing


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return recorded(tmp_path / "made.mcap")


async def test_by_tick_back_and_forth_and_by_time_again(session: Path) -> None:
    """Ticks of a step: 0F0 | 0F1 1F0 | 1B0 | 0B0 1F1 | 1B1 | 0B1, each whole at 10, 20, 40, 60, 70
    and 90 ms."""
    async with showing(session) as (app, pilot):
        await shows(app, "bubble")
        await pilot.press("g")
        await shows(app, "by tick")
        await shows(app, ", . tick")
        await pilot.press("home")
        await until(lambda: at_ms(app) == 0, "the begin")
        for tick, end in ((1, 10), (2, 20), (3, 40), (4, 60), (5, 70), (6, 90)):
            await pilot.press("full_stop")
            await until(lambda end=end: at_ms(app) == end, f"tick {tick}")  # type: ignore[misc]
            await shows(app, f"tick {tick} of 6")
        await shows(app, "tick 6 ran r0 B1")
        await pilot.press("full_stop")  # the next step's first
        await until(lambda: at_ms(app) == 110, "tick 1 of step 1")
        await shows(app, "step 1  tick 1 of 6")
        await pilot.press("comma", "comma")
        await until(lambda: at_ms(app) == 70, "back")
        await shows(app, "tick 5 ran r1 B1")
        await pilot.press("g")
        await shows(app, "plan")
        assert "by tick" not in text_of(app)


async def test_a_cell_is_chosen_by_keys_and_looked_at(session: Path) -> None:
    async with showing(session) as (app, pilot):
        await shows(app, "bubble")
        await pilot.press("g")
        await shows(app, "by tick")
        await pilot.press("enter")
        await shows(app, "┌ r0 0B1 tick 6")
        await pilot.press("h")
        await shows(app, "┌ r0 0B0 tick 4 20 ms")
        await pilot.press("j")  # rank 1 in the same tick
        await shows(app, "┌ r1 1F1 tick 4 10 ms")
        await pilot.press("l", "l", "l")  # the last one stays
        await shows(app, "┌ r1 1B1 tick 5")
        await shows(app, "waited for by r0 B1")
        await pilot.press("escape")
        await until(lambda: "┌ r" not in text_of(app), "nothing chosen")


async def test_keys_of_the_grid_say_where_they_work(session: Path) -> None:
    async with showing(session) as (app, pilot):
        await shows(app, "bubble")
        await pilot.press("4", "h")
        await shows(app, "h and l go along the mesh")
        await pilot.press("3", "g")
        await shows(app, "g: mesh on 1 Overview")


async def test_by_time_the_chosen_action_has_a_strip_and_goes_with_the_keys(session: Path) -> None:
    """By hand: rank 0's last backward takes 20 ms, from 70 to 90, as all of its kind do, and waits
    10 ms for rank 1's."""
    async with showing(session) as (app, pilot):
        await shows(app, "bubble")
        await pilot.press("h")
        await shows(app, "0B1 ──")
        await shows(app, "20 ms from 70 ms to 90 ms   median of 10 like it 20 ms")
        await shows(app, "waited 10 ms for 1B1")
        await pilot.press("j")
        await shows(app, "1B1 ──")
        await pilot.press("h", "k")
        await shows(app, "0B0 ──")
        await pilot.press("escape")
        await until(lambda: "0B0 ──" not in text_of(app), "nothing chosen")


def test_held_ranks_have_a_console_under_the_grid_where_there_is_room() -> None:
    store = load(SESSIONS / "1f1b.mcap")
    t_ns = (store.begin_ns + store.end_ns) * 2 // 3
    made = snapshot(store, t_ns, partial=True)
    control = replace(made.control, mode=Mode.HELD)
    typed = (Entry(t_ns, "(pardbg) p loss", "strong"), Entry(t_ns, "r0  4.68", ""))
    shared = Shared(typed=typed)
    page = PipelinePage(shared)

    def drawn(mode: Mode, cells: int, rows: int) -> list[str]:
        shown = replace(made, control=replace(control, mode=mode))
        frame = Frame(shown, ticks=ticks_shown(store, t_ns, TicksWant(0, None, always=True)))
        page.by_ticks(True, frame)
        picture = page.draw(frame, cells, rows)
        lines = [plain(row) for row in (*picture.head, *picture.body, *picture.foot)]
        assert len(lines) <= rows
        return lines

    large = drawn(Mode.HELD, 120, 40)
    asked = next(at for at, text in enumerate(large) if "p loss" in text)
    assert "4.68" in large[asked + 1] and not large[-1].strip() and len(large) == 40
    assert shared.console_rows > 4
    for mode, cells, rows in ((Mode.HELD, 80, 14), (Mode.RUNNING, 120, 40)):
        assert not any("p loss" in text for text in drawn(mode, cells, rows))
        assert shared.console_rows == 0


def test_breakpoints_that_have_no_room_are_counted_and_the_newest_stand_there() -> None:
    made = held(snapshot_1f1b())
    breaks = tuple(Breakpoint(number, f"mb=={number}") for number in range(1, 10))
    shown = replace(made, control=replace(made.control, breaks=breaks))
    for rows, first in ((24, 1), (14, 7)):  # 14: 8 for the source, 3 edges
        text = [plain(row) for row in held_panels(shown, DebugPageState(0), "(pardbg)", 120, rows)]
        known = [n for n in range(1, 10) if any(f"mb=={n} " in row for row in text)]
        assert known == [*range(first, 10)]
        assert any("3 of 9" in row for row in text) == (first > 1)


@pytest.mark.parametrize(
    "why", [Hit(2, 1, "action==2B3", next="2B3"), Raised(2, "IndexError: out of range")]
)
async def test_the_selection_follows_a_hit_once(why: Fact) -> None:
    held_now = held(snapshot_1f1b())
    hit = replace(held_now, control=replace(held_now.control, why=(why,)))
    app = app_on(hit, FakePort(), start="pipeline")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: app.main.shared.rank == 2, "the rank that hit")
        await pilot.press("k")
        await until(lambda: app.main.shared.rank == 1, "a choice of one's own")
        app.main.take_frame(app.main.shared.frame)
        assert app.main.shared.rank == 1
