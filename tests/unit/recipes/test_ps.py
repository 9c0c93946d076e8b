"""The asynchronous parameter server: nobody comes back too late, and nobody waits forever."""

from __future__ import annotations

import random

import pytest

from pardbg.lab.recipes.ps_async import in_time


@pytest.mark.parametrize(
    ("version", "away", "bound", "holds"),
    [
        (0, [0], 0, True),
        (0, [0, 0], 0, False),  # the second one back finds one update
        (0, [0, 0], 1, True),
        (5, [3], 2, True),  # two updates since: at the bound
        (5, [2], 2, False),
        (5, [3, 3], 2, False),  # the first is at the bound, the second then one over
        (5, [3, 4, 5], 2, True),  # back in this order each finds two
        (5, [], 0, True),
    ],
)
def test_who_is_away_can_come_back_in_time(
    version: int, away: list[int], bound: int, holds: bool
) -> None:
    assert in_time(version, away, bound) is holds


@pytest.mark.parametrize("bound", range(6))
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_any_order_of_pushes_stays_within_the_bound_and_goes_on(bound: int, workers: int) -> None:
    """The server's two rules, with workers that come back in a random order: 500 updates."""
    rng = random.Random(10 * workers + bound)
    version, away, pushed, seen = 0, dict[int, int](), set[int](), []
    waiting = list(range(workers))
    while version < 500:
        while waiting and in_time(version, [*away.values(), version], bound):
            away[waiting.pop(0)] = version
        out = sorted(set(away) - pushed)
        assert out, "nobody is at work, and nobody may start"
        pushed.add(rng.choice(out))
        for worker in sorted(pushed, key=away.__getitem__):
            others = (v for w, v in away.items() if w != worker)
            if in_time(version + 1, others, bound):
                seen.append(version - away.pop(worker))
                pushed.discard(worker)
                version += 1
                waiting.append(worker)
    assert max(seen) <= bound
    assert max(seen) == (0 if workers == 1 else bound if bound < workers else max(seen))
