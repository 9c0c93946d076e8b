"""Timing events: recycled, bounded, and read in the order in which their stream reaches them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

MAX_EVENTS: Final = 8192
"""Maximum number of events in flight: two for each span, a third for a wait."""
MAX_LANES: Final = 128


class EventPool:
    """Events that are not in use. All methods may be called from any thread."""

    def __init__(self, new_event: Callable[[], Any]) -> None:
        self._new_event = new_event
        self._free: list[Any] = []
        self._num = 0

    def take(self) -> tuple[Any, Any] | None:
        """Return two events for a span; None if all are in flight."""
        begin, end = self.one(), self.one()
        if end is not None:
            return begin, end
        if begin is not None:
            self.give(begin)
        return None

    def one(self) -> Any | None:
        """Return an event; None if all are in flight."""
        try:
            return self._free.pop()
        except IndexError:
            if self._num >= MAX_EVENTS:
                return None
            self._num += 1
            return self._new_event()

    def give(self, event: Any) -> None:
        """Take back an event that was read, or was never recorded."""
        self._free.append(event)

    @property
    def num_in_flight(self) -> int:
        return self._num - len(self._free)


class EventQueue:
    """Recorded events with their meanings, in order for each stream."""

    def __init__(self) -> None:
        self._lanes: dict[Any, deque[tuple[Any, Any]]] = {}

    def put(self, stream: Any, event: Any, meaning: Any) -> None:
        """Add an event just recorded on ``stream``."""
        lane = self._lanes.get(stream)
        if lane is None:
            lane = self._lanes.setdefault(stream, deque())
            self._forget_idle()
        lane.append((event, meaning))

    def reap(self, seen: Callable[[Any, Any], None]) -> bool:
        """Call ``seen(event, meaning)`` for the completed events, oldest of each stream first.
        Return whether others are left. One thread only; never blocks."""
        left = False
        for lane in list(self._lanes.values()):
            while lane and lane[0][0].query():
                seen(*lane.popleft())
            left |= bool(lane)
        return left

    def _forget_idle(self) -> None:
        if len(self._lanes) > MAX_LANES:
            for stream in [stream for stream, lane in list(self._lanes.items()) if not lane]:
                del self._lanes[stream]
