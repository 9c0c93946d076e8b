"""A process's clock against the hub's, as told over time."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

DRIFT: Final = 100e-6
"""How far two quartz clocks may run apart per second, with room (they are good to 50 ppm)."""
_MAX_TOLD: Final = 4096
_MAX_JUMPS: Final = 64


@dataclass(frozen=True, slots=True)
class Reading:
    """From hub time ``t_ns`` on: process clock + offset_ns = hub clock, give or take error_ns."""

    t_ns: int
    offset_ns: int
    error_ns: int | None
    """None: not known."""


@dataclass(frozen=True, slots=True)
class Jump:
    """The clock went ahead (or back) by itself between two readings."""

    since_ns: int
    t_ns: int
    by_ns: int


UNKNOWN: Final = Reading(0, 0, None)


class Clocks:
    """One process's. Empty until the hub has told something."""

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
        if not self._told:
            return UNKNOWN
        found = bisect_right(self._told, t_ns, key=lambda reading: reading.t_ns)
        return self._told[max(found - 1, 0)]

    def tell(self, reading: Reading) -> None:
        """Add a reading; one that drift does not explain is a jump."""
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
