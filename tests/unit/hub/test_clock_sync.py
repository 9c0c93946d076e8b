"""Another host's clock: what is told covers the truth, by planted offsets, drifts and delays."""

from __future__ import annotations

import random

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.comm.matching import collectives
from pardbg.store.clocks import ClockEstimate, Clocks, Offset, Reading, _together
from pardbg_agent import wire
from tests.unit.trace_builder import Trace, ns

MS, S = 10**6, 10**9


def test_the_shortest_round_trip_decides_the_clock() -> None:
    """Their clock is 1000 ahead. A ping of 10 ns gives ±5, one of 100 ns ±50 is not believed. What
    is told holds for 2 s of drift at 100 ppm: 200 000 ns more."""
    clock = ClockEstimate()
    clock.sent(1, 100)
    first = clock.answered(1, 1105, 110)
    assert first == Offset(-1000, 5 + 200_000)
    clock.sent(2, 200)
    assert clock.answered(2, 1290, 300) is None
    assert clock.answered(2, 1290, 300) is None  # answered twice
    assert clock.offset == first


def test_pings_late_on_different_ways_bound_the_clock_from_both_sides() -> None:
    """Their clock is 1000 ahead. One ping takes 80 there and 20 back, one 20 there and 80 back: of
    50 each way, give or take, 20 are left."""
    assert _together([Offset(-1030, 50), Offset(-970, 50)]) == Offset(-1000, 20)


def test_who_does_not_answer_is_not_asked_ten_times_a_second() -> None:
    """Eight pings at once, then no more than eight in the five seconds after which one is lost."""
    clock, sent = ClockEstimate(), []
    for now in range(S, 61 * S, S // 50):
        if clock.due(now):
            clock.sent(len(sent), now)
            sent.append(now)
    assert sent[7] - sent[0] == 7 * S // 10
    assert len(sent) <= 8 * 60 // 5


@pytest.mark.parametrize("offset_ms", [50, -50, 0])
@pytest.mark.parametrize("ppm", [0, 50, -50])
@pytest.mark.parametrize("one_way", [0.0, 0.5, 1.0])
def test_what_is_told_covers_the_truth_at_all_times(
    offset_ms: int, ppm: int, one_way: float
) -> None:
    """Ten minutes of pings, 0.1 to 5 ms of delay, from evenly spread to all on one way."""
    chance = random.Random(1)
    clock, told, now = ClockEstimate(), 0, S

    def offset_at(t: int) -> int:
        """hub = theirs + this"""
        return -(offset_ms * MS + round(ppm * 1e-6 * t))

    for ping in range(600):
        delay = round(chance.expovariate(1 / (0.4 * MS))) + MS // 10
        there = round(delay * one_way)
        clock.sent(ping, now)
        theirs = now + there - offset_at(now + there)
        told += clock.answered(ping, theirs, now + delay) is not None
        assert clock.offset is not None
        for later in (now + delay, now + S):
            assert abs(offset_at(later) - clock.offset.offset_ns) <= clock.offset.error_ns
        now += S if ping > 8 else S // 10
    assert clock.offset is not None and clock.offset.error_ns < MS
    assert told < 600 // 2  # not each second anew


@pytest.mark.parametrize("by_s", [60, -60])
def test_a_clock_that_jumps_is_followed_at_the_next_ping(by_s: int) -> None:
    """Suspended for a minute: their monotonic clock stood still meanwhile. The store says so."""
    clock, known, now, behind = ClockEstimate(), Clocks(), S, 0
    for ping in range(60):
        if ping == 40:
            behind = by_s * S
        clock.sent(ping, now)
        told = clock.answered(ping, now + MS // 20 - behind, now + MS // 10)
        if told is not None:
            known.tell(Reading(now, told.offset_ns, told.error_ns))
        assert clock.offset is not None and clock.offset.offset_ns == behind
        now += S
    (jump,) = known.jumps
    assert (jump.t_ns, jump.by_ns) == (41 * S, -by_s * S)
    assert known.at(jump.t_ns - 1).offset_ns == 0
    assert known.at(jump.t_ns).offset_ns == by_s * S


@pytest.mark.parametrize("ppm", [50, -50])
def test_ops_of_a_drifting_host_are_in_order_where_the_shown_error_says_so(ppm: int) -> None:
    """Ten minutes, one op a second; rank 1's clock starts 50 ms ahead and drifts by 30 ms in all.
    Its pings take 0.2 to 3 ms, all of it on the way back. Rank 1 comes 3 ms later in odd seconds,
    3 ms earlier in even ones."""
    chance, clock = random.Random(3), ClockEstimate()
    trace = Trace()
    trace.ranks = [trace.process(rank, host=f"n{rank}", pid=100 + rank) for rank in range(2)]
    here, there = trace.ranks
    for second in range(1, 601):
        theirs_ahead_ms = 50 + ppm * 1e-6 * second * 1000
        sent, t = ns(second * 1000 - 500), second * 1000.0
        clock.sent(second, sent)
        back = sent + round(chance.uniform(0.2, 3) * MS)
        told = clock.answered(second, sent + round(theirs_ahead_ms * MS), back)
        if told is not None:
            trace.define(wire.DefKind.CLOCK, proc=there.proc, offset_ns=told.offset_ns,
                         error_ns=told.error_ns, t_ns=back)  # fmt: skip
        late = 3 if second % 2 else -3
        here.collective("world", "all_reduce", t, t + 5, step=second)
        there.collective(
            "world", "all_reduce", t + late + theirs_ahead_ms, t + 5 + theirs_ahead_ms, step=second
        )
        trace.flush()
    view = View(trace.store(), None)
    assert not view.ranks[1].clocks.jumps
    rows = collectives(view, None)
    assert [row.last_rank for row in rows] == [second % 2 for second in range(1, 601)]
    for row in rows:
        error = view.ranks[1].clocks.at(ns((row.step or 0) * 1000)).error_ns
        assert error is not None and abs((row.skew_ns or 0) - 3 * MS) <= error < 3 * MS
