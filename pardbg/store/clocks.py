"""Offset of a process's clock from the hub's: estimated by ping, and as reported over time."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from typing import Final

DRIFT: Final = 100e-6
"""Maximum drift between two quartz clocks, ns per ns, with a margin (quartz is good to 50 ppm)."""
_MAX_TOLD: Final = 4096
_MAX_JUMPS: Final = 64
WINDOW: Final = 16
"""Number of recent pings used: the offset must lie in the (aged) bound of each of them."""
HOLDS_NS: Final = 2_000_000_000
"""Age for which the error of an offset is given."""
PING_NS: Final = 1_000_000_000
LOST_NS: Final = 5_000_000_000
"""Time after which a ping without an answer is forgotten."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading from hub time ``t_ns`` on: process clock + offset_ns = hub clock ± error_ns."""

    t_ns: int
    offset_ns: int
    error_ns: int | None
    """Maximum error of the offset; None: not known."""


@dataclass(frozen=True, slots=True)
class Jump:
    """Sudden change of a process's clock, ahead (or back), between two readings."""

    since_ns: int
    t_ns: int
    by_ns: int


UNKNOWN: Final = Reading(0, 0, None)


class Clocks:
    """Offset readings of one process's clock; empty until the hub has reported one."""

    def __init__(self) -> None:
        self._told: list[Reading] = []
        self.jumps: list[Jump] = []

    def __bool__(self) -> bool:
        return bool(self._told)

    @property
    def newest(self) -> Reading:
        return self._told[-1] if self._told else UNKNOWN

    def at(self, t_ns: int) -> Reading:
        """Return the reading valid at hub time ``t_ns``, or the first one before that."""
        if not self._told or t_ns >= self._told[-1].t_ns:  # the usual case
            return self.newest
        found = bisect_right(self._told, t_ns, key=lambda reading: reading.t_ns)
        return self._told[max(found - 1, 0)]

    def offset_of(self, own_ns: int, by_ns: int) -> int:
        """Return the offset to add to a time of the process's own clock. Like the times of that
        moment's records, it is the one known at that time, at the latest at hub time ``by_ns``."""
        known = self.at(by_ns)
        then_ns = own_ns + known.offset_ns
        return known.offset_ns if then_ns >= known.t_ns else self.at(then_ns).offset_ns

    def apart_ns(self, t_ns: int) -> int:
        """Return how far the readings at ``t_ns`` and now may disagree about a moment, ns."""
        return sum(reading.error_ns or 0 for reading in {self.at(t_ns), self.newest})

    def tell(self, reading: Reading) -> None:
        """Add a reading; an offset change that drift does not explain counts as a jump."""
        if self._told and reading.t_ns < self._told[-1].t_ns:
            reading = Reading(self._told[-1].t_ns, reading.offset_ns, reading.error_ns)
        before = self._told[-1] if self._told else None
        if before == reading:
            return
        if before is not None and before.error_ns is not None and reading.error_ns is not None:
            allowed = before.error_ns + reading.error_ns + DRIFT * (reading.t_ns - before.t_ns)
            by_ns = before.offset_ns - reading.offset_ns
            if abs(by_ns) > allowed and len(self.jumps) < _MAX_JUMPS:
                self.jumps.append(Jump(before.t_ns, reading.t_ns, by_ns))
        if len(self._told) >= _MAX_TOLD:
            del self._told[1 : _MAX_TOLD // 2 : 2]  # far back every second one will do
        self._told.append(reading)


@dataclass(frozen=True, slots=True)
class Offset:
    """rank clock + offset_ns = hub clock, give or take error_ns."""

    offset_ns: int
    error_ns: int


SAME: Final = Offset(0, 0)
"""Offset for the same host: one CLOCK_MONOTONIC per boot (but not across time namespaces)."""


@dataclass(slots=True)
class ClockEstimate:
    """Estimate of one remote process's clock. ``offset`` is None before the first answer.

    A sample bounds the offset when it is taken; from then on the clocks drift apart, so its bound
    widens. The last reported offset is valid within its error as long as it contains the present
    bound; after that, a new one is reported. A sample that drift cannot reconcile with the samples
    before it means that the clock jumped: the earlier samples are dropped.
    """

    offset: Offset | None = None
    """The last reported offset."""
    _sent: dict[int, int] = field(default_factory=dict)
    _samples: deque[tuple[int, Offset]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """(hub time of the sample, the offset it measured)"""
    _next_ns: int = 0

    def due(self, now: int) -> bool:
        """Return whether the next ping is due: at short intervals at first while answered."""
        return now >= self._next_ns

    def sent(self, ping: int, now: int) -> None:
        """Note a ping sent at hub time ``now``."""
        self._sent = {i: t for i, t in self._sent.items() if now - t < LOST_NS}
        self._sent[ping] = now
        many = max(len(self._samples), len(self._sent)) >= WINDOW // 2
        self._next_ns = now + (PING_NS if many else PING_NS // 10)

    def answered(self, ping: int, their_ns: int, now: int) -> Offset | None:
        """Take an answer. Return a new offset if the reported one no longer holds, or is wider."""
        sent = self._sent.pop(ping, None)
        if sent is None or now < sent:
            return None
        # Their clock was read somewhere between sending and receiving: in the middle, give or
        # take half the round trip.
        sample = Offset((sent + now) // 2 - their_ns, (now - sent + 1) // 2)
        if any(not _agree(_aged(s, now - t), sample) for t, s in self._samples):
            self._samples.clear()  # the clock went ahead by itself: a suspended machine
        self._samples.append((now, sample))
        best = _together([_aged(s, now - t) for t, s in self._samples])
        told = _aged(best, HOLDS_NS)
        old, until_next = self.offset, _aged(best, PING_NS)
        if old is not None and told.error_ns >= 0.5 * old.error_ns:
            furthest = abs(best.offset_ns - old.offset_ns) + until_next.error_ns
            if furthest <= old.error_ns:
                return None
        self.offset = told
        return told


def _agree(one: Offset, other: Offset) -> bool:
    return abs(one.offset_ns - other.offset_ns) <= one.error_ns + other.error_ns


def _together(samples: list[Offset]) -> Offset:
    """Return the offset that all samples allow. A ping delayed on its way to the process bounds the
    offset from one side, a ping delayed on its way back from the other."""
    low = max(s.offset_ns - s.error_ns for s in samples)
    high = min(s.offset_ns + s.error_ns for s in samples)
    return Offset((low + high) // 2, (high - low + 1) // 2)


def _aged(sample: Offset, age_ns: int) -> Offset:
    return Offset(sample.offset_ns, sample.error_ns + round(DRIFT * age_ns))
