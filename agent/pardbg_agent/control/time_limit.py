"""A time limit for code that a person runs in a held thread.

The agent's thread looks at the clock and raises ``TimeIsUp`` in the thread that runs it, which
takes it at its next bytecode. Code inside C (a sleep, a collective) cannot be interrupted: there it
comes when the call returns.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Final

from pardbg_agent import clock

LIMIT_NS: Final = 5_000_000_000
_BYTECODES: Final = 1000
"""More than enough for what was sent to this thread to be raised in it: each is a place for it."""


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
        self._sent = False
        """TimeIsUp was raised in that thread, or will be at its next bytecode."""

    def run(self, work: Callable[[], None]) -> bool:
        """``work()`` in this thread; False if its time was up. Nothing is raised in this thread
        after it."""
        try:
            try:
                with self._lock:  # inside: from here on it may come at any bytecode
                    self._ident, self._sent = threading.get_ident(), False
                    self._until_ns = self._now() + self.limit_ns
                work()
            finally:
                self._end()
        except TimeIsUp:
            return False
        return not self._sent  # the work may have swallowed it

    def check(self) -> None:
        """End what has run for too long."""
        with self._lock:
            if self._ident and self._now() >= self._until_ns:
                ident, self._ident, self._sent = self._ident, 0, True
                kind = ctypes.py_object(TimeIsUp)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), kind)

    def _end(self) -> None:
        """Nothing is sent from here on; what was sent and has not come yet comes here.

        It cannot be taken back: clearing it leaves CPython's request to look for it set for ever
        (3.11, ``_PyEval_SignalAsyncExc``), which slows every bytecode down, and hangs a thread that
        is profiled.
        """
        with self._lock:
            self._ident = 0
        if self._sent and not isinstance(sys.exc_info()[1], TimeIsUp):
            for _ in range(_BYTECODES):
                pass
