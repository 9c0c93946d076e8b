"""A time limit for code that a person runs in a held thread.

The agent's thread looks at the clock and raises ``TimeIsUp`` in the thread that runs it, which
takes it at its next bytecode. Code inside C (a sleep, a collective) cannot be interrupted: there it
comes when the call returns.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Final

from pardbg_agent import clock

LIMIT_NS: Final = 5_000_000_000


class TimeIsUp(BaseException):
    """Not an Exception: what is run must not take it for one of its own."""


class TimeLimit:
    """One at a time: ``run`` in the held thread, ``check`` from the agent's."""

    def __init__(self, limit_ns: int = LIMIT_NS, now: Callable[[], int] = clock.now_ns) -> None:
        self.limit_ns, self._now = limit_ns, now
        self._lock = threading.Lock()
        self._ident = 0
        """The thread that runs something; 0: none does."""
        self._until_ns = 0

    def run(self, work: Callable[[], None]) -> bool:
        """``work()`` in this thread; False if its time was up. Nothing is raised in this thread
        after it."""
        try:
            with self._lock:
                self._ident, self._until_ns = threading.get_ident(), self._now() + self.limit_ns
            try:
                work()
            finally:
                self._end()
        except TimeIsUp:
            self._end()  # it may have come within _end
            return False
        return True

    def check(self) -> None:
        """End what has run for too long."""
        with self._lock:
            if self._ident and self._now() >= self._until_ns:
                _raise_in(self._ident, ctypes.py_object(TimeIsUp))
                self._ident = 0  # once

    def _end(self) -> None:
        with self._lock:
            self._ident = 0
            _raise_in(threading.get_ident(), None)  # take back one that has not come yet


def _raise_in(ident: int, kind: ctypes.py_object[type[BaseException]] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), kind)
