"""The tick grid: the partial order as columns, what ran last, what comes next and who waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from pardbg.analysis.answers.step_times import unheld_step_rows
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.holds import unheld_ns
from pardbg.analysis.pipeline.pipeline_steps import pipeline_step
from pardbg.analysis.pipeline.pipelines import layouts
from pardbg.analysis.pipeline.ticks.cell import TicksWant, ticks_shown
from pardbg.analysis.pipeline.ticks.grid import TickGrid, tick_ends, tick_grids, tick_numbers
from pardbg.session.reader import load
from pardbg_agent import wire
from pardbg_agent.wire import Flag, Kind, Lane
from tests.unit.trace_builder import MS, Trace, ns

SESSIONS = Path(__file__).parents[3] / "sessions"
PLAN = {0: ["0F0", "0F1", "0B0", "0B1"], 1: ["1F0", "1B0", "1F1", "1B1"]}
"""1F1B of two ranks and microbatches. By ticks:

    1   2   3   4   5   6
    F0  F1      B0      B1      B0 needs 1B0 (3), B1 needs 1B1 (5)
        F0  B0  F1  B1
"""


def stepped(until: int = 99, *, plan: bool = True) -> Trace:
    """The first ``until`` ticks, one each 1000 ms and 10 ms long, as somebody stepped them."""
    trace = Trace(2)
    if plan:
        trace.plan("Schedule1F1B", PLAN, 2)
    trace.hub(wire.Key.CONTROL, 0, event="cut", mode="held", held={"0": "0F0", "1": "RECV_F0"})
    ticks = (("0F0",), ("0F1", "1F0"), ("1B0",), ("0B0", "1F1"), ("1B1",), ("0B1",))
    for number, actions in enumerate(ticks[:until]):
        t = 1000.0 * (number + 1)
        trace.hub(wire.Key.CONTROL, t, event="verb", verb="tick", mode="stepping")
        for text in actions:
            trace.ranks[int(text[0])].action(text, t + 5, t + 15)
        trace.hub(wire.Key.CONTROL, t + 50, event="cut", mode="held", held={"0": "x", "1": "y"})
    return trace.flush()


def picture(grid: TickGrid) -> list[str]:
    """One character a cell: ``=`` done, ``*`` last, ``>`` running, ``?`` next, ``-`` planned."""
    signs = {"done": "=", "last": "*", "running": ">", "next": "?", "plan": "-"}
    rows = []
    for row in grid.rows:
        at = {cell.tick: signs[cell.state] for cell in row.cells}
        rows.append("".join(at.get(tick, ".") for tick in range(1, grid.num_ticks + 1)))
    return rows


def one(trace: Trace, t: float | None = None) -> TickGrid:
    (grid,) = tick_grids(View(trace.store(), None if t is None else ns(t)))
    return grid


@pytest.mark.parametrize(
    ("ticks", "expected"),
    [
        (0, ["?-.-.-", ".----."]),
        (1, ["*?.-.-", ".?---."]),
        (2, ["=*.-.-", ".*?--."]),
        (3, ["==.?.-", ".=*?-."]),
        (4, ["==.*.-", ".==*?."]),
        (5, ["==.=.?", ".===*."]),
        (6, ["==.=.*", ".====."]),
    ],
)
def test_each_tick_moves_the_wavefront_by_a_column(ticks: int, expected: list[str]) -> None:
    grid = one(stepped(ticks))
    assert picture(grid) == expected
    assert (grid.tick, grid.num_ticks) == (ticks, 6)


@pytest.mark.parametrize(
    ("fact", "moves"),
    [
        ({"event": "take", "before": "a"}, False), ({"event": "verb", "verb": "where"}, False),
        ({"event": "verb", "verb": "pause"}, False), ({"event": "edit", "verb": "tbreak"}, False),
        ({"event": "verb", "verb": "next"}, True), ({"event": "edit", "verb": "until"}, True),
        ({"event": "running"}, True),
    ],
)  # fmt: skip
def test_what_moves_nobody_leaves_the_last_tick(fact: dict[str, str], moves: bool) -> None:
    """Rank 0 ran ahead to F1 in tick 1: that is no whole column, which is all that is known of the
    newest tick once ranks have run by themselves."""
    trace = stepped(1)
    trace.ranks[0].action("0F1", 1020, 1030)
    trace.hub(wire.Key.CONTROL, 2000, **fact, mode="held", held={"0": "x", "1": "y"})
    grid = one(trace.flush())
    assert grid.rows[0].ran == (("0F0",) if moves else ("0F0", "0F1"))
    assert (grid.tick, grid.column) == (1, 1 if moves else None)


def test_the_tick_of_what_ran_is_the_column_in_which_it_stands() -> None:
    """Rank 0 is a column ahead of rank 1, which stayed behind: F1 is of tick 2, but the newest
    whole column is 1."""
    trace = stepped(1)
    trace.hub(wire.Key.CONTROL, 2000, event="verb", verb="tick", mode="stepping")
    trace.ranks[0].action("0F1", 2005, 2015)
    trace.hub(wire.Key.CONTROL, 2050, event="cut", mode="held", held={"0": "x", "1": "y"})
    grid = one(trace.flush())
    assert (grid.tick, grid.column, grid.rows[0].ran) == (1, 2, ("0F1",))


def test_who_cannot_move_says_for_whom_it_waits() -> None:
    rows = one(stepped(2)).rows  # next of rank 0 is B0, which needs 1B0
    assert (rows[0].waits_for, rows[0].waits_rank) == ("1B0", 1)
    assert rows[1].waits_for is None and rows[1].coming == "1B0"
    assert rows[0].ran == ("0F1",) and rows[0].gate == "x"
    assert (rows[0].in_flight, rows[0].in_flight_bound) == (2, 2)


def test_the_same_moment_later_is_the_same_grid() -> None:
    """Time that ranks were held changes nothing."""
    trace = stepped(4)
    store = trace.store()
    trace.hub(wire.Key.CONTROL, 900_000, event="", mode="held", held={"0": "x", "1": "y"})
    later = trace.store()
    assert tick_grids(View(store, None)) == tick_grids(View(later, None))


def test_back_in_time_shows_the_tick_of_that_moment() -> None:
    trace = stepped()
    assert picture(one(trace, 2500)) == ["=*.-.-", ".*?--."]
    assert picture(one(trace, 4016)) == ["==.*.-", ".==*?."]
    ends = tick_ends(View(trace.store(), None), layouts(View(trace.store(), None))[0], 0)
    assert ends == [(k, ns(1000 * k + 15)) for k in range(1, 7)]


def test_without_a_plan_the_order_is_the_step_before_s() -> None:
    trace = stepped(plan=False)
    for text, t in (("0F0", 9000), ("0F1", 9020)):
        trace.ranks[0].action(text, t, t + 10, step=1)
    trace.ranks[1].action("1F0", 9020, 9030, step=1)
    grid = one(trace.flush())
    assert (grid.step, grid.source) == (1, "step before")
    # nobody stepped since the pause: what ran since the last verb is not known to be one tick
    assert [r.coming for r in grid.rows] == [None, "1B0"]
    assert grid.num_ticks == 6 and grid.num_done == 3


def test_a_record_that_is_late_is_inferred_from_what_needs_it() -> None:
    trace = Trace(2)
    trace.plan("Schedule1F1B", PLAN, 2)
    trace.ranks[1].action("1F0", 10, 20)  # 0F0 has run: its output was here
    # tick 2 is not whole (0F1 is missing), so tick 1 is the last one
    assert picture(one(trace.flush())) == ["*?.-.-", ".=?--."]


def test_1f1b_of_four_ranks_by_hand() -> None:
    """p=4, m=8: rank r warms up with 4-r forwards, then one backward and one forward in turn."""
    store = load(SESSIONS / "1f1b.mcap")
    layout = layouts(View(store, None))[0]
    ticks = tick_numbers(layout.order, 4)
    row = {r: [ticks[text] for text in layout.order[r]] for r in range(4)}
    # F0..F3, then B0 F4 B1 F5 B2 F6 B3 F7 from tick 8 on, then every second one
    assert row[0] == [1, 2, 3, 4, *range(8, 17), 18, 20, 22]
    assert row[1] == [2, 3, 4, *range(7, 18), 19, 21]
    assert row[2] == [3, 4, *range(6, 19), 20]
    assert row[3] == list(range(4, 20))


@pytest.mark.parametrize(
    "name", ["1f1b", "gpipe", "interleaved", "zb", "zbv", "dualpipev", "looped-bfs", "mp", "3d"]
)
def test_every_schedule_has_a_grid_in_which_order_holds(name: str) -> None:
    store = load(SESSIONS / f"{name}.mcap")
    middle = (store.begin_ns + 3 * store.end_ns) // 4
    grids = tick_grids(View(store, middle))
    assert grids and all(grid.num_done for grid in grids)
    for grid in grids:
        for row in grid.rows:
            ticks = [cell.tick for cell in row.cells]
            assert ticks == sorted(set(ticks))  # one action a tick, in the rank's order
        actions = {cell.action: cell.tick for row in grid.rows for cell in row.cells}
        for text, tick in actions.items():
            if text[1] == "F" and text[0] != "0":
                assert actions[f"{int(text[0]) - 1}{text[1:]}"] < tick


def test_a_cell_says_duration_bytes_and_who_waited() -> None:
    store = load(SESSIONS / "1f1b.mcap")
    middle = (store.begin_ns + 3 * store.end_ns) // 4
    shown = ticks_shown(store, middle, TicksWant(1, "1B1", always=True))
    assert shown is not None and shown.cell is not None
    cell = shown.cell
    assert cell.duration_ns is not None and cell.median_ns is not None
    assert 0.5 < cell.duration_ns / cell.median_ns < 2
    assert [t.peer for t in cell.received] == [2] and [t.peer for t in cell.sent] == [0]
    assert cell.received[0].bytes == cell.sent[0].bytes > 0
    assert cell.needs == "2B1"
    assert ticks_shown(store, middle, TicksWant(1)) is None  # nobody is held


def test_a_hold_inside_an_action_is_no_time_of_it() -> None:
    """1F0 runs from 20 to 130 and is held inside from 25 to 125: 10 ms of its own. Rank 0 waits
    for it in a receive meanwhile, and then runs B0: it waited for the debugger, not for rank 1."""
    trace = Trace(2)
    trace.plan("Schedule1F1B", {0: ["0F0", "0B0"], 1: ["1F0", "1B0"]}, 1)
    r0, r1 = trace.ranks
    r0.action("0F0", 10, 20)
    r1.action("1F0", 20, 130)
    r1.held(25, 125)
    r0.wait(20, 150)
    r1.action("1B0", 130, 150)
    r0.action("0B0", 150, 170)
    view = View(trace.flush().store(), None)
    made = pipeline_step(view, layouts(view)[0], 0)
    assert made is not None and made.held_ns == 100 * MS
    spans = {a.text: (a.t0_ns, a.t1_ns) for row in made.ranks for a in row.actions}
    assert spans == {
        "0F0": (ns(10), ns(20)), "1F0": (ns(20), ns(30)), "1B0": (ns(30), ns(50)),
        "0B0": (ns(50), ns(70)),
    }  # fmt: skip
    assert made.bubble_fraction == pytest.approx(1 - 60 / 120)


def test_waiting_for_a_held_rank_is_no_time_of_a_step() -> None:
    """DDP: rank 1 is held from 20 to 120 before its all_reduce, rank 0 waits for it from 15 on."""
    trace = Trace(2)
    for rank, proc in enumerate(trace.ranks):
        proc.phase("backward", 0, 15)
        proc.wait(15, 125, p2p=False) if rank == 0 else proc.held(20, 120)
        proc.step(0, 0, 130)
    view = View(trace.flush().store(), None)
    assert [row.duration_ns for row in unheld_step_rows(view)] == [30 * MS]
    assert (unheld_ns(view, 0, ns(0), ns(130)), unheld_ns(view, 1, ns(0), ns(130))) == (
        30 * MS, 30 * MS,
    )  # fmt: skip


def test_a_step_that_one_rank_ends_before_another_is_no_longer_for_a_hold() -> None:
    """Either rank's step lasts 60 ms. Rank 1 begins and ends its own 20 ms before rank 0, which is
    held for 1 ms while it has nothing to do."""
    trace = Trace(2)
    trace.plan("Schedule1F1B", {0: ["0F0", "0B0"], 1: ["1F0", "1B0"]}, 1)
    r0, r1 = trace.ranks
    for rank, text, t0 in (r0, "0F0", 10), (r1, "1F0", 20), (r1, "1B0", 30), (r0, "0B0", 50):
        rank.action(text, t0, t0 + (10 if "F" in text else 20))
    r1.step(0, -10, 50)
    r0.held(45, 46)
    r0.step(0, 10, 70)
    (row,) = unheld_step_rows(View(trace.flush().store(), None))
    assert row.duration_ns == 60 * MS


@pytest.mark.parametrize(("until", "own"), [(131, 71), (70, 40), (40, 40), (20, 20)])
def test_a_device_ends_what_was_launched_before_a_hold(until: float, own: float) -> None:
    """F0 is launched at 1 and runs on the device from 3 to 40. The host is held from 5 to 100,
    then launches B0: the hold costs the device the time from 40 to 100."""
    trace = Trace(1)
    (proc,) = trace.ranks
    for name, issued, t0, t1 in ("F", 1, 3, 40), ("B", 100, 100, 130):
        common = {"lane": Lane.COMPUTE, "stage": 0, "mb": 0}
        proc.record(Kind.ACTION, issued, issued + 1, proc.name(name), flags=Flag.DEVICE, **common)
        proc.record(Kind.DEVICE, t0, t1, proc.name(name), a=(t0 - issued) * MS, **common)
        if name == "F":
            proc.held(5, 100)
    view = View(trace.flush().store(), None)
    assert unheld_ns(view, 0, ns(0), ns(until)) == own * MS
