"""A recording that a run still writes, read on where the last look ended."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from pardbg.session.reader import SessionError, SessionSource, open_checked
from pardbg.store.store import Store


class Growing:
    """The newest part of a run's recording. A look costs what was written since the one before."""

    def __init__(self, newest: Callable[[], Path]) -> None:
        """``newest``: the path of the part that is written now; each part opens alone."""
        self._newest = newest
        self._source: SessionSource | None = None
        self.store = Store()

    def look(self) -> Store:
        """Return the store with all whole chunks that are written by now."""
        path = self._newest()
        if self._source is None or self._source.path != path:
            self._open(path)
        while self._source is not None and (messages := self._source.poll(0)):
            self.store.apply_all(messages)
        self.store.settle()
        return self.store

    def _open(self, path: Path) -> None:
        with suppress(SessionError):  # nothing of it is written yet
            source = open_checked(path, partial(SessionSource, path, growing=True))
            self.close()
            self._source, self.store = source, Store()
            self.store.live = True

    def close(self) -> None:
        """Close the file."""
        if self._source is not None:
            self._source.close()
