"""Another host's clock: what is told covers the truth, by planted offsets, drifts and delays."""

from __future__ import annotations

import random

import pytest

from pardbg.hub.clock import ClockEstimate, Offset

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


def test_a_clock_that_jumps_is_followed_as_soon_as_the_old_samples_are_gone() -> None:
    """Suspended for a minute: their monotonic clock stood still meanwhile."""
    clock, now, behind = ClockEstimate(), S, 0
    for ping in range(80):
        if ping == 40:
            behind = 60 * S
        clock.sent(ping, now)
        clock.answered(ping, now + MS // 20 - behind, now + MS // 10)
        now += S
    assert clock.offset is not None and clock.offset.offset_ns == 60 * S
