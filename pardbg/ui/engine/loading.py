"""Reading of messages from the source into the store, in slices, with progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pardbg.session.navigation.travel import every_rank_stepped, opening
from pardbg.store.source import Source
from pardbg.ui.engine.cursor import TimeCursor
from pardbg.ui.engine.feed import SecondRecording
from pardbg.words import percent

POLL_MS = 30
OPENING_S = 0.4
"""Maximum wait, s, of a recording's first frame for the end of the second training step."""
LOAD_SLICE_S = 0.04
"""Maximum time, s, of reading a recording before frames and keys are handled again."""
LATE_NS = 2_000_000_000
"""Maximum delay of records, ns; a moment is complete once messages this much later are read."""


class Loader:
    """Applies a source's messages to a store, on the engine's thread."""

    def __init__(
        self, source: Source, store: Any, cursor: TimeCursor, second: SecondRecording | None
    ) -> None:
        self._source, self._store, self._cursor = source, store, cursor
        self.second = second
        self.opened = not cursor.replay
        """Whether the time at which the recording opens has been chosen."""
        self._begun_s = time.monotonic()
        self._read_ns = 0
        """Hub time of the newest message read."""

    @property
    def finished(self) -> bool:
        """Return whether the source has no more messages."""
        return self._source.finished

    @property
    def share(self) -> float:
        """Return the share of a recording that has been read, 0..1."""
        return 1.0 if self._source.finished else float(getattr(self._source, "progress", 1.0))

    @property
    def notice(self) -> str:
        """Return the reason why no messages come, if the source knows the reason."""
        return str(getattr(self._source, "notice", ""))

    @property
    def so_far(self) -> str:
        """Return the share read so far as text, for an answer that more reading may change."""
        return "" if self.share >= 1 else f" ({percent(self.share, 0)} of the recording is read)"

    def bounds(self) -> tuple[int, int]:
        """Return begin and end of the session as far as known; also set them in the cursor."""
        begin, end = self._store.begin_ns, self._store.end_ns
        if not self._source.finished:
            end = max(end, getattr(self._source, "end_ns", None) or 0)
        self._cursor.bounds(begin, end)
        return begin, end

    def read_slice(self, waited_for: Callable[[], bool]) -> None:
        """Read a slice of a recording; a short slice if a frame is waited for."""
        until = time.monotonic() + LOAD_SLICE_S
        while not self._source.finished:
            self.read(0)
            if time.monotonic() >= until or waited_for():
                break

    def read_second(self, second: SecondRecording) -> bool:
        """Read a slice of the second recording; return True if it was the last slice."""
        until = time.monotonic() + LOAD_SLICE_S
        while not second.source.finished and time.monotonic() < until:
            second.store.apply_all(second.source.poll(0))
        if second.source.finished:
            second.store.settle()
            self._store.reference = second.store
            self._store.revision += 1
        return second.source.finished

    def settle(self) -> None:
        """Settle the store: everything was read, so no record waits for later messages any more."""
        settle = getattr(self._store, "settle", None)
        if settle is not None:
            settle()

    def is_read(self, t_ns: int) -> bool:
        """Return whether messages still to be read cannot change the view at that time."""
        return self._source.finished or t_ns + LATE_NS <= self._read_ns

    def open(self) -> bool:
        """Open the recording at the end of an early training step, or at the begin if none has
        ended in the part read so far. False: read on first."""
        stepped = self._source.finished or every_rank_stepped(self._store)
        if not stepped and time.monotonic() - self._begun_s < OPENING_S:
            return False
        self.opened = True
        self.to_opening()
        return True

    def to_opening(self, whole: bool = False) -> None:
        """Move to the recording's opening time, as far as known, unless the user has moved; a
        ``whole`` recording without a training step opens at the end."""
        begin, end = self.bounds()
        if not self._cursor.moved:
            stepped = opening(self._store, -1 if whole else 1)
            self._cursor.open_at((end if whole else begin) if stepped is None else stepped)

    def read(self, wait_ms: int) -> None:
        """Apply the messages received; wait at most ``wait_ms`` for the first."""
        messages = self._source.poll(wait_ms)
        for message in messages:
            self._store.apply(message)
        if messages:
            self._read_ns = max(self._read_ns, messages[-1].received_ns)
