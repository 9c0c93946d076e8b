"""Each process's clock against the hub's: known on the same boot, estimated by ping elsewhere."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

WINDOW: Final = 16
"""Pings looked at; the one with the shortest round trip decides."""
PING_NS: Final = 1_000_000_000
LOST_NS: Final = 5_000_000_000
"""A ping without an answer for so long is forgotten."""


@dataclass(frozen=True, slots=True)
class Offset:
    """rank clock + offset_ns = hub clock, give or take error_ns."""

    offset_ns: int
    error_ns: int


SAME: Final = Offset(0, 0)
"""CLOCK_MONOTONIC is one clock per boot, for all processes (but not across time namespaces)."""


@dataclass(slots=True)
class ClockEstimate:
    """One remote process's clock. ``offset`` is None before the first answer."""

    offset: Offset | None = None
    _sent: dict[int, int] = field(default_factory=dict)
    _samples: deque[Offset] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _next_ns: int = 0

    def due(self, now: int) -> bool:
        """Is it time for another ping? (Quickly at first.)"""
        return now >= self._next_ns

    def sent(self, ping: int, now: int) -> None:
        """A ping left at hub time ``now``."""
        self._sent = {i: t for i, t in self._sent.items() if now - t < LOST_NS}
        self._sent[ping] = now
        self._next_ns = now + (PING_NS if len(self._samples) >= WINDOW // 2 else PING_NS // 10)

    def answered(self, ping: int, their_ns: int, now: int) -> Offset | None:
        """The answer came. The new estimate if it changed by more than the old one's error."""
        sent = self._sent.pop(ping, None)
        if sent is None or now < sent:
            return None
        # Their clock was read somewhere between sending and receiving: in the middle, give or
        # take half the round trip.
        self._samples.append(Offset((sent + now) // 2 - their_ns, (now - sent + 1) // 2))
        best = min(self._samples, key=lambda sample: sample.error_ns)
        old = self.offset
        if old is not None and best.error_ns >= old.error_ns * 0.8:
            moved = abs(best.offset_ns - old.offset_ns)
            if moved <= old.error_ns:
                return None
        self.offset = best
        return best
