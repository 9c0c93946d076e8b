"""Snapshot of a live run of many ranks, made in pieces, as a whole one takes seconds."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final

from pardbg.analysis.answers.snapshot import Snapshot, Viewport, made_of
from pardbg.analysis.base.asof import Moment, View, as_they_are
from pardbg.analysis.findings.arbiter import decided
from pardbg.analysis.findings.finding import Candidate, Finding
from pardbg.analysis.findings.registry import Detector, detectors
from pardbg.store.intake import to_columns
from pardbg.store.store import Store

_AT_ONCE: Final = 128
"""Number of processes whose records are put into their tables in one piece."""


class Round:
    """One look at a live run. Its pieces see the run as it was when the look began, whatever has
    come since; partial snapshots may be made in between. Meanwhile stores keep the data that it
    sees, so a look should be finished or dropped soon."""

    def __init__(
        self, store: Store, rank: int | None, viewport: Viewport, before: Snapshot
    ) -> None:
        """Begin a look; arguments as for `pardbg.analysis.answers.snapshot.snapshot`."""
        view = View(store, None, few=True)
        self._store, self._then = store, Moment(view.t_ns, view.now_ns)
        self._asked = rank, viewport, before
        self._procs = list(store.procs.values())
        self._num_read = 0
        self._left: deque[Detector] = deque(detectors(view))
        self._found: list[Candidate] = []
        self._kept: dict[Hashable, Any] = {}

    def go_on(self, enough: Callable[[], bool]) -> Snapshot | None:
        """Make at least one piece, and more until ``enough`` is true. Return the snapshot once it
        is complete; None before."""
        while self._num_read < len(self._procs):
            some = self._procs[self._num_read : self._num_read + _AT_ONCE]
            to_columns(some)
            for process in some:
                process.put_by.look = weakref.ref(self)
            self._num_read += _AT_ONCE
            if enough():
                return None
        with as_they_are(self._procs):
            view = View(self._store, None, then=self._then, of_look=self._kept)
            return self._look(view, enough)

    def _look(self, view: View, enough: Callable[[], bool]) -> Snapshot | None:
        try:
            while self._left:
                self._found += self._left.popleft()(view)
                if enough():
                    return None
            return made_of(view, *self._asked, self._decided, partial=False)
        finally:
            view.done()

    def _decided(self, view: View) -> tuple[Finding, ...]:
        return decided(self._found)
