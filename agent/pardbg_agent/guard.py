"""Guard of the training: no exception of the agent may reach the training.

A hook that raises is disabled, counted, and reported once as an ERROR definition. KeyboardInterrupt
and SystemExit are the program's and pass through."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from pardbg_agent import clock

Report = Callable[[str, str, int], None]
"""(where, text, t_ns)"""

_MAX_TEXT = 2000


class Guard:
    """Caller of hooks, which disables those that fail."""

    def __init__(self, report: Report | None = None) -> None:
        self.errors = 0
        """Total number of exceptions caught."""
        self.disabled: set[str] = set()
        """Names of hooks that failed and are off."""
        self._report = report

    def call(self, name: str, fn: Callable[..., Any], *args: Any) -> Any:
        """Return ``fn(*args)``, or None if it is disabled or fails now."""
        if name in self.disabled:
            return None
        try:
            return fn(*args)
        except Exception as error:  # noqa: BLE001 - this is the guard
            self.failed(name, error)
            return None

    def failed(self, name: str, error: BaseException) -> None:
        """Disable ``name`` and report it once. Hooks with their own try/except call this."""
        self.errors += 1
        if name in self.disabled:
            return
        self.disabled.add(name)
        if self._report is None:
            return
        try:
            text = "".join(traceback.format_exception(error))[-_MAX_TEXT:]
            self._report(name, text, clock.now_ns())
        except Exception:  # noqa: BLE001 - the report failed: counted, no more can be done
            self.errors += 1
