"""How long a thing usually takes on this rank: a running median of each.

What is short is never slow: on a busy machine everything waits some milliseconds for a core now
and then. Short is less than LEAST_NS, and less than a tenth of what a step usually takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final

WINDOW: Final = 32
"""Samples of a thing that its median is of: the newest."""
FIRST: Final = 5
"""With fewer than that there is no median yet."""
LATER: Final = 7
"""The same for what takes long where another rank is slow: so that the other one, whose own time is
looked at, is the one that is found."""
LEAST_NS: Final = 10_000_000
STEP: Final = "step"
"""The thing that a whole training step is."""
MAX_THINGS: Final = 1024
"""Of more, the ones beyond have no median."""


class Medians:
    """thing -> its newest durations. Any thread."""

    def __init__(self) -> None:
        self._known: dict[Hashable, deque[int]] = {}
        self.least_ns = LEAST_NS
        """What takes less is not slow."""

    def add(
        self, thing: Hashable, ns: int, times: float, first: int = FIRST
    ) -> tuple[int, int] | None:
        """It took so long now. (median, of how many) if that is more than ``times`` the median of
        those before, of which there must be ``first``."""
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
