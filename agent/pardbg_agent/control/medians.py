"""How long things usually take on this rank: a running median of each.

Short things are never slow, since on a busy machine everything waits some milliseconds for a core
now and then. Short is less than LEAST_NS, and less than a tenth of a usual step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final

WINDOW: Final = 32
"""Number of newest samples in a median."""
FIRST: Final = 5
"""Minimum number of samples for a median."""
LATER: Final = 7
"""The same for what takes long because another rank is slow, so that the other one, judged by its
own time, is found first."""
LEAST_NS: Final = 10_000_000
STEP: Final = "step"
"""Key of a whole training step."""
MAX_THINGS: Final = 1024
"""Maximum number of keys; further ones have no median."""


class Medians:
    """thing -> its newest durations. Any thread."""

    def __init__(self) -> None:
        self._known: dict[Hashable, deque[int]] = {}
        self.least_ns = LEAST_NS
        """What takes less is not slow."""

    def add(
        self, thing: Hashable, ns: int, times: float, first: int = FIRST
    ) -> tuple[int, int] | None:
        """Add a duration. Return (median, number of samples) of those before if it exceeds
        ``times`` their median and there were at least ``first`` of them."""
        known = self._known.get(thing)
        if known is None:
            if len(self._known) >= MAX_THINGS:
                return None
            known = self._known.setdefault(thing, deque(maxlen=WINDOW))
        found = None
        if ns >= self.least_ns and len(known) >= first:
            median = _median(known)
            if ns > times * median:
                found = median, len(known)
        known.append(ns)
        if thing == STEP:
            self.least_ns = max(LEAST_NS, _median(known) // 10)
        return found


def _median(known: deque[int]) -> int:
    return sorted(known)[len(known) // 2]
