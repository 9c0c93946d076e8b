"""The time of the next frame, by the cost of the last; and Python's full garbage collections, kept
out of frames that the user waits for."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from pardbg.ui.engine.cursor import TimeCursor

LIVE_PERIOD_S = 0.125
"""Time between frames of a live run: at most 8 a second."""
MANY_PERIOD_S = 0.8
"""Time from the end of a frame of a live run of many ranks to the next: one comes every second."""
PLAY_PERIOD_S = 0.066
"""Time between frames while a recording plays: at most 15 a second."""
LOOK_BACK_PERIOD_S = 1.0
"""Time between frames of a past time: they do not change; only the run's end moves."""
SHARE = 12
"""Inverse of the share of a core that unrequested frames may take at most: heavy analysis runs less
often. Frames that a user asks for come at once."""
PARTIAL_SHARE, ROUND_SHARE = 8, 7
"""As SHARE, for a live run of many ranks: partial frames, and looks at all ranks, which run in
pieces between frames."""
PIECE_SHARE = 1
"""As SHARE, for the time between two pieces."""
URGENCY = 4
"""Factor by which the waiting time shrinks if ranks have stopped, or gone on, since the last look
at all ranks; and early in a run."""
PIECE_S = 0.1
"""Maximum time, s, of the analysis between two frames, as nearly as it can stop."""
PLAYING_SHARE = 2
"""As SHARE, while a recording plays, since the user is watching."""
SLOW_S = 0.06
"""Cost, s, of a whole frame above which requested frames come without findings first."""
IDLE_S = 1.5
"""Idle time, s, after which findings of other moments are searched."""


class Pace:
    """Times and costs of the last frames."""

    def __init__(self, cursor: TimeCursor) -> None:
        self._cursor = cursor
        self._looked_s = self._cost_s = self._whole_s = 0.0
        self._piece_at_s = self._piece_s = self._round_s = self._rest_s = 0.0
        self._many = self._was_whole = False

    @contextmanager
    def frame(self) -> Iterator[None]:
        """Measure a frame's CPU time."""
        spent = time.thread_time()
        try:
            yield
        finally:
            self._looked_s = time.monotonic()
            self._cost_s = time.thread_time() - spent

    def note(self, *, whole: bool, many: bool) -> None:
        """Note the kind of the last frame: whole or partial. ``many``: there are so many ranks that
        frames of a live run are partial, and rare."""
        self._many, self._was_whole = many, whole
        if whole:
            self._whole_s = self._cost_s

    @contextmanager
    def piece(self) -> Iterator[Callable[[], bool]]:
        """Measure the work between two frames; yield a function that tells when it is enough."""
        spent = time.thread_time()
        try:
            yield lambda: time.thread_time() - spent >= PIECE_S
        finally:
            self._piece_at_s, self._piece_s = time.monotonic(), time.thread_time() - spent
            self._round_s += self._piece_s

    def round_over(self) -> None:
        """Note that the last piece completed a look at all ranks."""
        self._rest_s, self._round_s = self._round_s, 0.0

    def piece_is_due(self, urgent: bool) -> bool:
        """Return whether to look at the next piece."""
        rest = self._piece_s * PIECE_SHARE if self._round_s else self._rest_s * ROUND_SHARE
        rest = rest / URGENCY if urgent else rest
        return self.slow and time.monotonic() - self._piece_at_s >= rest

    @property
    def idle(self) -> bool:
        """Return whether the user has not navigated for a while."""
        return time.monotonic() - self._looked_s > IDLE_S

    @property
    def slow(self) -> bool:
        """Return whether whole frames take long."""
        return self._whole_s > SLOW_S

    def is_time(self, awaited: bool) -> bool:
        """Return whether the period of the mode is over; ``awaited``: the selected time is not read
        yet."""
        period = LIVE_PERIOD_S if self._cursor.following else LOOK_BACK_PERIOD_S
        if self._cursor.playing or awaited:
            period = PLAY_PERIOD_S
        share = PLAYING_SHARE if self._cursor.playing else SHARE
        if self._cursor.following and self._many and self.slow:
            share, period = 1 if self._was_whole else PARTIAL_SHARE, MANY_PERIOD_S
        return time.monotonic() - self._looked_s >= max(period, self._cost_s * share)


PERIOD_S: Final = 60.0
LATEST_S: Final = 600.0
"""Longest time, s, without a collection, even while the user keeps moving."""
_NEVER: Final = 1 << 30


class GcPauses:
    """Schedule of full collections. Young generations are left to Python: they take no time."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()

    @contextmanager
    def suppressed(self) -> Iterator[None]:
        """Keep Python from full collections of its own inside this context."""
        young, middle, old = gc.get_threshold()
        gc.set_threshold(young, middle, _NEVER)
        try:
            yield
        finally:
            gc.set_threshold(young, middle, old)

    def tick(self, idle: bool) -> None:
        """Collect if it is time, between two frames; ``idle``: the user waits for no frame."""
        passed = time.monotonic() - self._last_s
        if passed > (PERIOD_S if idle else LATEST_S):
            gc.collect()
            self._last_s = time.monotonic()


def give_back() -> None:
    """Give free pages back to the system: after a look at a thousand ranks 100 MB lie in holes of
    glibc's heap. Takes some 15 ms. Other C libraries keep theirs."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
