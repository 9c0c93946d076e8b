"""The exception that ends a thread of this process, told before the process is gone.

``sys.excepthook`` and ``threading.excepthook`` are chained: what was there before runs as always.
In a child of ``multiprocessing``, which prints the exception itself, it is seen as it leaves
``Process.run``. The values of variables are not looked at.

Where the job was started with ``--on-exception hold``, the thread is then held, as at a gate, until
the hub lets it die. Its stack is unwound by then, but the traceback still has its frames.
"""

from __future__ import annotations

import functools
import sys
import threading
import traceback
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from pardbg_agent import clock
from pardbg_agent.control.inspect import hide_own, traceback_of
from pardbg_agent.wire import DefKind

if TYPE_CHECKING:
    from pardbg_agent.watched_rank import Core

MAX_TEXT: Final = 500
MAX_TOLD: Final = 16
"""Exceptions told per process: threads of a program may fail by the thousand."""


class UncaughtErrors:
    """The process's excepthooks, chained. ``current`` gives the Core that is told."""

    def __init__(self, current: Callable[[], Core | None]) -> None:
        self._current = current
        self._before: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        """The hooks that were there; None: ours are not in place."""
        self._ours = self._uncaught, self._uncaught_in_thread
        self._told = 0
        self._passing = threading.local()
        """``on``: the hook that ours calls runs in this thread."""

    def install(self) -> None:
        """Chain the hooks. Again: only where somebody has put others in their place."""
        ours = sys.excepthook == self._ours[0] and threading.excepthook == self._ours[1]
        if self._before is not None and ours:
            return
        self._before, self._told = self._without_ours(), 0
        sys.excepthook, threading.excepthook = self._ours

    def _without_ours(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The hooks in place, and for one that is ours what it was chained to."""
        known = self._before or (sys.__excepthook__, threading.__excepthook__)
        return (
            known[0] if sys.excepthook == self._ours[0] else sys.excepthook,
            known[1] if threading.excepthook == self._ours[1] else threading.excepthook,
        )

    def uninstall(self) -> None:
        """Put back what was there, unless somebody chained onto ours: then ours only passes on."""
        if self._before is not None and (sys.excepthook, threading.excepthook) == self._ours:
            (sys.excepthook, threading.excepthook), self._before = self._before, None

    def child_fails(self, raised: BaseException) -> None:
        """It leaves the ``run`` of a process that multiprocessing started. mp.spawn has turned it
        into SystemExit by then."""
        value: BaseException | None = raised
        if isinstance(raised, SystemExit):
            value = raised.__context__ if raised.code else None
        if value is not None and not isinstance(value, SystemExit):
            self._tell_and_hold(value, value.__traceback__, "MainThread")

    def _uncaught(
        self, kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        self._end(0, value, trace, "MainThread", kind, value, trace)

    def _uncaught_in_thread(self, args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread is not None else "thread"
        self._end(1, args.exc_value, args.exc_traceback, name, args)

    def _end(
        self, which: int, value: BaseException | None, trace: TracebackType | None, thread: str,
        *args: Any,
    ) -> None:  # fmt: skip
        """Tell, and pass ``args`` on to the hook that was there."""
        plain: Callable[..., Any] = (sys.__excepthook__, threading.__excepthook__)[which]
        if getattr(self._passing, "on", False):  # that hook was itself chained to ours
            plain(*args)
            return
        if value is not None:
            self._tell_and_hold(value, trace, thread)
            hide_own(value)
        self._passing.on = True
        try:
            (plain if self._before is None else self._before[which])(*args)
        finally:
            self._passing.on = False

    def _tell_and_hold(
        self, value: BaseException, trace: TracebackType | None, thread: str
    ) -> None:
        c = self._current()
        if c is not None and c.run is not None:
            c.guard.call("excepthook", self._tell, c, value, trace, thread)
            c.guard.call("excepthook", _hold, c, value, trace, thread)

    def _tell(
        self, c: Core, value: BaseException, trace: TracebackType | None, thread: str
    ) -> None:
        """One EXCEPTION definition. It is in the definitions' file at once, so a kill that follows
        does not take it along."""
        if self._told >= MAX_TOLD:
            return
        self._told += 1
        c.defs.put(
            DefKind.EXCEPTION, t_ns=clock.now_ns(), type=type(value).__name__,
            text=_last_line(value), thread=thread, frames=traceback_of(trace), step=c.step,
        )  # fmt: skip


class Children:
    """Processes that multiprocessing starts, by any method: ``fails(error)`` is called in them with
    what leaves their ``run``."""

    def __init__(self, fails: Callable[[BaseException], None]) -> None:
        self._fails = fails
        self._undo: Callable[[], None] = lambda: None

    def watch(self, module: ModuleType) -> None:
        """``module`` is multiprocessing.process."""
        base = module.BaseProcess
        original, fails = base._bootstrap, self._fails

        @functools.wraps(original)
        def bootstrap(process: Any, *args: Any, **kwargs: Any) -> Any:
            process.run = functools.partial(_run, process.run, fails)
            return original(process, *args, **kwargs)

        base._bootstrap = bootstrap
        self._undo = lambda: setattr(base, "_bootstrap", original)

    def leave(self) -> None:
        self._undo()
        self._undo = lambda: None


def _run(run: Callable[[], object], fails: Callable[[BaseException], None]) -> None:
    try:
        run()
    except BaseException as error:
        fails(error)
        hide_own(error)
        raise


def _hold(c: Core, value: BaseException, trace: TracebackType | None, thread: str) -> None:
    """Stay here until the hub lets it die, or nobody speaks for the hub any more. What ends a
    program on purpose (KeyboardInterrupt, SystemExit) is not held."""
    if c.run is None or not c.run.hold_exceptions or not isinstance(value, Exception):
        return
    if c.sender is None or not c.sender.alive:
        return  # nobody could let it go
    where = "" if thread == "MainThread" else f" in thread {thread}"
    try:
        c.gate.hold_raised(f"exception{where} {_last_line(value)}", trace)
    except KeyboardInterrupt:
        pass  # it dies of its own exception, now


def _last_line(value: BaseException) -> str:
    said = "".join(traceback.format_exception_only(value)).splitlines()
    lines = [line.strip() for line in said if line.strip() and not line.strip().startswith("File ")]
    words = 2 if lines and lines[0].endswith(":") else 1  # a text that begins with a new line
    return " ".join(lines[:words])[:MAX_TEXT] or type(value).__name__
