"""Watches of a rank: what the hub may say, how a hit holds at the next gate, running medians."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pardbg_agent.control.breaks import breaks_of
from pardbg_agent.control.gate import GateControl
from pardbg_agent.control.watches import (
    FIRST,
    LEAST_NS,
    MAX_THINGS,
    NO_WATCHES,
    STEP,
    WINDOW,
    Medians,
    Watches,
    watches_of,
)
from pardbg_agent.ctrl.agent_messages import Watch
from pardbg_agent.wire import GATE_ALL, LEASE_NS, MAX_BREAKS, Gate
from pardbg_agent.words import times_median, took
from tests.unit.agent.test_gate import World, until

MS = 1_000_000


def said(n: int, kind: str, limit: float = 0.0, ignore: int = 0) -> Watch:
    return Watch(n, kind, limit, ignore)


def test_what_the_hub_says_becomes_an_attribute_per_kind() -> None:
    watches = watches_of([said(2, "nan"), said(5, "slow", 4.0), said(7, "memory", 1 << 30)])
    assert watches.nan is not None and watches.nan.number == 2
    assert watches.slow is not None and (watches.slow.number, watches.slow.limit) == (5, 4.0)
    assert watches.memory is not None and watches.memory.limit == 1 << 30
    assert watches.mismatch is watches.skew is watches.diverge is None
    assert watches.active and watches.before_issue


def test_memory_looks_at_no_op_before_it_is_issued() -> None:
    watches = watches_of([said(1, "memory", 5.0)])
    assert watches.active and not watches.before_issue


def test_of_two_of_a_kind_the_lower_limit_counts() -> None:
    watches = watches_of([said(1, "slow", 9.0), said(2, "slow", 3.0)])
    assert watches.slow is not None and watches.slow.number == 2


def test_a_newer_hub_may_ask_for_more_than_is_known() -> None:
    assert watches_of(()) is NO_WATCHES and not NO_WATCHES.active
    watches = watches_of([said(1, "nan"), said(2, "entropy"), said(3, "entropy")])
    assert watches.unknown == ("entropy",) and not watches.has(2) and watches.nan is not None


@pytest.mark.parametrize(
    "wrong",
    [
        [said(1, "slow", float("nan"))], [said(1, "slow", -1.0)], [said(1, "nan", ignore=-1)],
        [said(n, "nan") for n in range(MAX_BREAKS + 1)],
    ],
)  # fmt: skip
def test_nonsense_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"watch"):
        watches_of(wrong)


def test_matches_are_counted_and_ignored_ones_pass() -> None:
    """The second of two ignored ones is let pass, the third is one to stop at."""
    watches = watches_of([said(4, "nan", ignore=2)])
    assert [watches.counts(4) for _ in range(3)] == [False, False, True]
    assert watches.hits == {4: 3} and not watches.counts(9)


def test_a_new_list_goes_on_counting_where_the_old_one_was() -> None:
    old = watches_of([said(4, "nan", ignore=3), said(5, "slow", 2.0)])
    old.counts(4)
    same, other = watches_of([said(4, "nan", ignore=3)]), watches_of([said(4, "nan", ignore=1)])
    same.keep_counts(old)
    other.keep_counts(old)
    assert same.hits == other.hits == {4: 1}
    assert [same.counts(4) for _ in range(3)] == [False, False, True], "two were left to pass"
    assert [other.counts(4) for _ in range(2)] == [False, True], "it was asked anew: one"


# -- the gate


def watched(*watches: Watch) -> World:
    world = World()
    world.gate.set_breaks(breaks_of([]), watches_of(list(watches)))
    return world


def test_only_a_watch_that_looks_before_an_op_closes_the_gate() -> None:
    assert not watched(said(1, "memory", 5.0)).gate.closed
    world = watched(said(1, "nan"))
    assert world.gate.closed and not world.gate.holding
    assert world.gate.wait(Gate.ACTION, "2F4") == 0, "closed means look here: nobody holds"
    world.gate.set_breaks(breaks_of([]))
    assert not world.gate.closed


def test_a_hit_holds_at_the_next_gate_and_says_what_was_found() -> None:
    world = watched(said(3, "memory", 5.0))
    assert world.gate.stop(3, "6 B allocated, more than 5 B")
    assert world.gate.closed and not world.gate.state().held
    with world.thread_at(Gate.ACTION, "2F4"):
        until(lambda: world.gate.state().held)
        state = world.gate.state()
        assert state.hit == (3, "6 B allocated, more than 5 B") and state.next == "2F4"
        assert not world.gate.stop(3, "again"), "the hub has not heard of the first yet"
        world.gate.permit(8, 0, 0, GATE_ALL, LEASE_NS)
        held = world.gate.state()
        assert held.hit == state.hit and held.held, "the hub holds it now, and may not know why"
        world.gate.run(9)
        assert world.gate.state().hit is None
        assert not world.gate.state().held and not world.gate.closed
    assert world.gate.watches is NO_WATCHES, "the gate has ended"


def test_a_look_at_what_comes_next_holds_that_very_gate() -> None:
    world = watched(said(3, "nan"))
    looks: list[bool] = []

    def look() -> None:
        looks.append(world.gate.stop(3, "2 of 8 values"))

    args = (Gate.COLLECTIVE, "all_reduce dp #4", None, look)
    thread = threading.Thread(target=world.gate.wait, args=args, daemon=True)
    thread.start()
    until(lambda: world.gate.state().held)
    assert world.gate.state().next == "all_reduce dp #4" and looks == [True]
    world.gate.run(1)
    thread.join(5)
    assert not thread.is_alive()


def test_a_permit_that_comes_between_the_hit_and_the_gate_does_not_lose_it() -> None:
    """Rank 0's hit has the hub hold all; this rank's own is still to be said."""
    world = watched(said(3, "memory", 5.0))
    world.gate.stop(3, "more")
    world.gate.permit(8, 0, 0, GATE_ALL, LEASE_NS)
    with world.thread_at(Gate.STEP, "step 4"):
        until(lambda: world.gate.state().held)
        assert world.gate.state().hit == (3, "more")


def test_a_deleted_watch_stops_nobody_and_an_ended_gate_neither() -> None:
    world = watched(said(3, "memory", 5.0))
    world.gate.stop(3, "more")
    world.gate.set_breaks(breaks_of([]))
    assert world.gate.wait(Gate.STEP, "step 4") == 0 and not world.gate.closed
    world = watched(said(3, "memory", 5.0))
    world.gate.end()
    assert not world.gate.stop(3, "more")


def test_ignored_matches_do_not_hold() -> None:
    world = watched(said(3, "memory", 5.0, ignore=1))
    assert not world.gate.stop(3, "once") and world.gate.wait(Gate.STEP, "step 4") == 0
    assert world.gate.stop(3, "twice") and world.gate.watches.hits == {3: 2}


def test_what_was_held_is_no_measure() -> None:
    """Held from 1000 to 2000: what began at 1500 does not count, what began at 2000 does."""
    gate = _clocked([1000, 2000])
    assert gate.free_since(0)
    gate.permit(1, 0, 0, GATE_ALL, LEASE_NS)
    assert not gate.free_since(0) and not gate.free_since(5000)
    gate.run(2)
    assert not gate.free_since(1500) and gate.free_since(2000)


def _clocked(times: list[int]) -> GateControl:
    """A gate for which each look at the clock is the next of ``times``, the last one from there."""
    return GateControl(
        record=lambda *_: None, name=lambda _: 1, status=lambda *_: None,
        now=lambda: times.pop(0) if len(times) > 1 else times[0],
    )  # fmt: skip


# -- medians


def test_slow_is_more_than_so_many_times_the_median_of_those_before() -> None:
    """20, 22, 24, 26, 28 ms: the median is 24, five times that 120."""
    medians = Medians()
    for ms in (28, 20, 26, 22, 24):
        assert medians.add("step", ms * MS, 5.0) is None
    assert medians.add("step", 120 * MS, 5.0) is None, "not more than"
    # Now 20, 22, 24, 26, 28, 120: the upper of the two in the middle is 26.
    assert medians.add("step", 131 * MS, 5.0) == (26 * MS, 6)
    assert medians.add("other", 900 * MS, 5.0) is None, "another thing has its own"


def test_there_is_no_median_of_four_and_nothing_short_is_slow() -> None:
    medians = Medians()
    for _ in range(FIRST - 1):
        medians.add("op", 1000, 2.0)
    assert medians.add("op", 50 * MS, 2.0) is None, "the fifth"
    assert medians.add("op", LEAST_NS - 1, 2.0) is None, "9999 times the median, but short"
    assert medians.add("op", LEAST_NS, 2.0) == (1000, 6)


def test_what_is_less_than_a_tenth_of_a_step_is_not_slow() -> None:
    """Steps of 400 ms: 39 ms are nothing, whatever the median of the thing is."""
    medians = Medians()
    for _ in range(FIRST + 1):
        medians.add(STEP, 400 * MS, 5.0)
        medians.add("op", 1 * MS, 5.0)
    assert medians.add("op", 39 * MS, 5.0) is None
    assert medians.add("op", 40 * MS, 5.0) == (1 * MS, 7)


def test_old_samples_go_and_new_things_beyond_a_number_are_left_out() -> None:
    medians = Medians()
    for _ in range(FIRST):
        medians.add("op", 20 * MS, 5.0)
    for _ in range(WINDOW):
        medians.add("op", 400 * MS, 100.0)
    assert medians.add("op", 500 * MS, 1.1) == (400 * MS, WINDOW), "20 ms is forgotten"
    for n in range(MAX_THINGS + 10):
        for _ in range(FIRST):
            medians.add(("op", n), 20 * MS, 5.0)
    assert medians.add(("op", MAX_THINGS - 2), 900 * MS, 5.0) is not None
    assert medians.add(("op", MAX_THINGS + 5), 900 * MS, 5.0) is None


def test_numbers_in_words() -> None:
    assert times_median(312 * MS, (25 * MS, 32)) == "12.5 × the median 25 ms of 32"
    assert took("2F4", 312 * MS, (25 * MS, 32)) == "2F4 took 312 ms, 12.5 × the median 25 ms of 32"
    assert isinstance(Watches(), Watches)
