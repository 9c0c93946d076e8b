"""Mapping of a device's clock to the host's by anchors, which are moments known on both clocks.

An anchor is an event on an idle stream, its host time bracketed by the host's clock before it is
recorded and after the query that first sees it done. Events give only differences on the device's
clock (a float of milliseconds, 24 bits), which is some ppm fast or slow: between two anchors the
host's time is interpolated, after the newest it goes on at the rate between the last two."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pardbg_agent.clock import now_ns

FRESH_NS: Final = 1_000_000_000
"""Age of the newest anchor after which another one is taken."""
STALE_NS: Final = 5_000_000_000
"""Age of an anchor after which even a wide one replaces it: 24 bits of 5 s are steps of 0.5 us."""
SOON_NS: Final = 100_000_000
"""Age of the first anchor at which the second is taken: until then the rate is not known."""
TRIES: Final = 5
PATIENCE_NS: Final = 30_000
"""Time for which an attempt's event is queried (QUERIES times at most) before it counts as late."""
QUERIES: Final = 256
SEEN_NS: Final = 20_000
"""Maximum time until a query sees a completed event: a few us on a GPU."""
KEPT: Final = 16
MAX_DRIFT: Final = 200e-6
"""Allowed drift while no rate is known; crystals drift up to 100 ppm."""
WANDER: Final = 1e-6
"""Allowed change of a known rate."""
RESOLUTION_NS: Final = 500
"""Resolution of CUDA's elapsed times, as documented."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """Moment known on the device's clock and on the host's."""

    event: Any
    host_ns: int
    error_ns: float
    """Half of the bracket's width."""
    drift: float = 0.0
    """Host time gained per device time since the previous anchor."""
    drift_error: float = MAX_DRIFT


class DeviceClock:
    """Maps done events of one device to the host's clock. Never waits for the device."""

    def __init__(
        self, new_event: Callable[[], Any], stream: Any, now: Callable[[], int] = now_ns,
        taken: Callable[[Anchor], None] = lambda anchor: None,
    ) -> None:  # fmt: skip
        """Set up the clock. ``stream``: unused by others, or a bracket is wide or does not close.
        ``taken`` is called with each new anchor."""
        self._new_event, self._stream, self._now = new_event, stream, now
        self._taken = taken
        self._anchors: deque[Anchor] = deque(maxlen=KEPT)
        self._late: tuple[Any, int] | None = None
        """Event that no attempt saw completed, and a host time before its completion."""

    @property
    def error_ns(self) -> int | None:
        """Half-width of the newest anchor's bracket; None before the first anchor."""
        return math.ceil(self._anchors[-1].error_ns) if self._anchors else None

    def tend(self) -> None:
        """Take an anchor if one is due. Call often, always from the same thread."""
        last = self._anchors[-1] if self._anchors else None
        age = self._now() - last.host_ns if last else 0
        if last and age < (FRESH_NS if len(self._anchors) > 1 else SOON_NS):
            return
        tries = 1 if self._late else TRIES
        tried = [anchor for _ in range(tries) if (anchor := self._bracket()) is not None]
        if not tried:  # the device is another process's now, or stands
            return
        self._late = None
        best = min(tried, key=lambda anchor: anchor.error_ns)
        if last is None:
            self._add(best)
        elif best.error_ns <= last.error_ns + age * last.drift_error or age > STALE_NS:
            self._add(_rated(last, best))

    def close(self) -> None:
        """Release all events."""
        self._anchors.clear()
        self._late = None

    def _add(self, anchor: Anchor) -> None:
        self._anchors.append(anchor)
        self._taken(anchor)

    def _bracket(self) -> Anchor | None:
        """Try to bracket an event, or query the late event again: its bracket begins shortly before
        its last query, so it may be wide."""
        if self._late is None:
            event, before = self._new_event(), self._now()
            event.record(self._stream)
        else:
            event, before = self._late
        begun = self._now()
        for _ in range(QUERIES):
            if event.query():
                width = self._now() - before
                return Anchor(event, before + width // 2, width - width // 2)
            if self._now() - begun > PATIENCE_NS:
                break
        self._late = event, max(before, begun - SEEN_NS)
        return None

    def host_time(self, event: Any) -> tuple[int, int] | None:
        """Return (host time, its error) of a completed event in ns; None before the first
        anchor."""
        if not self._anchors:
            return None
        anchor, later = self._anchors[-1], None
        elapsed = anchor.event.elapsed_time(event)
        if elapsed < 0:
            for earlier in reversed(list(self._anchors)[:-1]):
                anchor, later = earlier, anchor
                elapsed = anchor.event.elapsed_time(event)
                if elapsed >= 0:
                    break
        return _mapped(anchor, later, elapsed)


def _mapped(anchor: Anchor, later: Anchor | None, elapsed_ms: float) -> tuple[int, int]:
    """Return (host time, error) of a moment ``elapsed_ms`` past ``anchor``, before ``later``."""
    ns = elapsed_ms * 1e6
    if later is None:
        drift, error = anchor.drift, anchor.error_ns + ns * (anchor.drift_error + WANDER)
    elif ns >= 0:
        drift, error = later.drift, max(anchor.error_ns, later.error_ns) + ns * WANDER
    else:  # before the oldest anchor
        drift, error = later.drift, anchor.error_ns - ns * (later.drift_error + WANDER)
    return anchor.host_ns + round(ns + ns * drift), math.ceil(error + _step_ns(elapsed_ms))


def _rated(last: Anchor, anchor: Anchor) -> Anchor:
    """Return the anchor with the clock rate since the last one."""
    elapsed_ms = last.event.elapsed_time(anchor.event)
    ns = max(1.0, elapsed_ms * 1e6)
    drift = (anchor.host_ns - last.host_ns - ns) / ns
    error = (last.error_ns + anchor.error_ns + _step_ns(elapsed_ms)) / ns
    if error > MAX_DRIFT:  # the brackets are too wide for a rate
        wide = anchor.error_ns + ns * MAX_DRIFT
        return Anchor(anchor.event, anchor.host_ns, wide)
    return Anchor(anchor.event, anchor.host_ns, anchor.error_ns, drift, error)


def _step_ns(elapsed_ms: float) -> float:
    """Return the resolution of an elapsed time, in ns: that of 24 bits, or the device's own."""
    return max(RESOLUTION_NS, math.ldexp(1e6, math.frexp(elapsed_ms)[1] - 24))
