"""A device's clock on the host's: anchors, which are moments known on both.

An anchor is an event on an idle stream, its host time bracketed by the host's clock before it is
recorded and after the query that first sees it done. Events give only differences on the device's
clock (a float of milliseconds, 24 bits), which is some ppm fast or slow: between two anchors the
host's time is interpolated, after the newest it goes on at the rate between the last two.
"""

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
"""Age after which even a wide one is better: 24 bits of 5 s are steps of 0.5 us."""
SOON_NS: Final = 100_000_000
"""Age of the first anchor at which the second is taken: until then the rate is not known."""
TRIES: Final = 5
PATIENCE_NS: Final = 30_000
"""Time for which a try's event is asked, before it is late; QUERIES times at most."""
QUERIES: Final = 256
SEEN_NS: Final = 20_000
"""Time after which a query sees an event that is done: a few us on a GPU."""
KEPT: Final = 16
MAX_DRIFT: Final = 200e-6
"""Drift that is allowed for while no rate is known; crystals have up to 100 ppm."""
WANDER: Final = 1e-6
"""Change of a known rate that is allowed for."""
RESOLUTION_NS: Final = 500
"""Of CUDA's elapsed times, as documented."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A moment on both clocks."""

    event: Any
    host_ns: int
    error_ns: float
    """Half of the bracket's width."""
    drift: float = 0.0
    """Host time gained on the device's, per device time, since the anchor before."""
    drift_error: float = MAX_DRIFT


class DeviceClock:
    """Maps done events of one device to the host's clock. Never waits for the device."""

    def __init__(
        self, new_event: Callable[[], Any], stream: Any, now: Callable[[], int] = now_ns,
        taken: Callable[[Anchor], None] = lambda anchor: None,
    ) -> None:  # fmt: skip
        """``stream``: one that nobody else uses, or a bracket is wide or does not close. ``taken``
        is called with each new anchor."""
        self._new_event, self._stream, self._now = new_event, stream, now
        self._taken = taken
        self._anchors: deque[Anchor] = deque(maxlen=KEPT)
        self._late: tuple[Any, int] | None = None
        """An event that no try saw done, and a time before it was."""

    @property
    def error_ns(self) -> int | None:
        """Half-width of the newest anchor's bracket; None: there is none yet."""
        return math.ceil(self._anchors[-1].error_ns) if self._anchors else None

    def tend(self) -> None:
        """Take an anchor if one is due. Call often, from one thread."""
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
        """Let go of all events."""
        self._anchors.clear()
        self._late = None

    def _add(self, anchor: Anchor) -> None:
        self._anchors.append(anchor)
        self._taken(anchor)

    def _bracket(self) -> Anchor | None:
        """Try once, or look again at the event that is late: its bracket begins a bit before it was
        last looked at, so it may be wide."""
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
        """Return (host time, its error) of a done event, in ns; None while there is no anchor."""
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
    """Return (host time, error) of what was so long after an anchor and before a later one."""
    ns = elapsed_ms * 1e6
    if later is None:
        drift, error = anchor.drift, anchor.error_ns + ns * (anchor.drift_error + WANDER)
    elif ns >= 0:
        drift, error = later.drift, max(anchor.error_ns, later.error_ns) + ns * WANDER
    else:  # before the oldest anchor
        drift, error = later.drift, anchor.error_ns - ns * (later.drift_error + WANDER)
    return anchor.host_ns + round(ns + ns * drift), math.ceil(error + _step_ns(elapsed_ms))


def _rated(last: Anchor, anchor: Anchor) -> Anchor:
    """Return the anchor with the rate since the last one."""
    elapsed_ms = last.event.elapsed_time(anchor.event)
    ns = max(1.0, elapsed_ms * 1e6)
    drift = (anchor.host_ns - last.host_ns - ns) / ns
    error = (last.error_ns + anchor.error_ns + _step_ns(elapsed_ms)) / ns
    if error > MAX_DRIFT:  # the brackets are too wide to tell it
        wide = anchor.error_ns + ns * MAX_DRIFT
        return Anchor(anchor.event, anchor.host_ns, wide)
    return Anchor(anchor.event, anchor.host_ns, anchor.error_ns, drift, error)


def _step_ns(elapsed_ms: float) -> float:
    """Return the step of an elapsed time: that of 24 bits, or the device's own."""
    return max(RESOLUTION_NS, math.ldexp(1e6, math.frexp(elapsed_ms)[1] - 24))
