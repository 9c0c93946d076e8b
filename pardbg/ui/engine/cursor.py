"""The cursor: following a live run, at an earlier time of it, or anywhere in a recording.

Keys move it on the UI's thread and the engine reads it on its own, so every method holds a lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pardbg.session.navigation.replay import ReplayClock


class TimeCursor:
    """The selected time, ns by the hub's clock; None is the newest time of a live run."""

    def __init__(self, clock: ReplayClock | None = None) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._t_ns: int | None = None
        self._end_ns = self._begin_ns = 0
        self._at_end = False
        """Whether the end of a recording was chosen: the cursor then follows the reading."""
        self.moved = False
        """Whether the user has chosen a time, or plays: then the viewer does not choose one."""

    @property
    def replay(self) -> bool:
        return self._clock is not None

    @property
    def following(self) -> bool:
        """Return whether the run is live and the cursor at the newest time."""
        return self._clock is None and self._t_ns is None

    @property
    def playing(self) -> bool:
        return self._clock is not None and self._clock.playing

    @property
    def speed(self) -> float:
        return self._clock.speed if self._clock is not None else 1.0

    def bounds(self, begin_ns: int, end_ns: int) -> None:
        """Set the first and last time of the run."""
        with self._lock:
            if self._clock is not None:
                self._clock.bounds(begin_ns, end_ns)
                if self._at_end:
                    self._clock.seek(end_ns, time.monotonic())
            self._begin_ns, self._end_ns = begin_ns, end_ns

    def at(self, now_s: float) -> int | None:
        """Return the selected time, advanced if a recording plays."""
        with self._lock:
            return self._t_ns if self._clock is None else self._clock.now(now_s)

    def play(self, change: Callable[[ReplayClock, float], None]) -> None:
        """Change how a recording plays, by its clock and the time (s); no effect on a live run."""
        with self._lock:
            if self._clock is not None:
                change(self._clock, time.monotonic())
                if self._clock.playing:
                    self.moved, self._at_end = True, False

    def stop(self) -> None:
        self.play(ReplayClock.stop)

    def seek(self, t_ns: int) -> None:
        """Move to ``t_ns`` within the run; the end of a live run means following the run."""
        with self._lock:
            self.moved, self._at_end = True, False
            if self._clock is not None:
                self._clock.seek(t_ns, time.monotonic())
            else:
                self._t_ns = None if t_ns >= self._end_ns else max(t_ns, self._begin_ns)

    def open_at(self, t_ns: int) -> bool:
        """Move to a recording's opening time; False if the user has already selected a time."""
        with self._lock:
            if self._clock is None or self.moved:
                return False
            self._clock.seek(t_ns, time.monotonic())
            return True

    def move(self, by_ns: int, from_ns: int) -> None:
        """Move by ``by_ns`` in either direction, from ``from_ns`` if the cursor follows a live
        run."""
        now = self.at(time.monotonic())
        self.seek((from_ns if now is None else now) + by_ns)

    def follow(self) -> None:
        """Move to the newest time, or to the end of a recording."""
        with self._lock:
            self._t_ns = None
            self.moved = self._at_end = True
            if self._clock is not None:
                now = time.monotonic()
                self._clock.stop(now)
                self._clock.seek(self._end_ns, now)
