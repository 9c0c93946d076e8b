"""Exceptions that end a thread of this process, reported before the process is gone.

``sys.excepthook`` is chained: the previous hook runs as always. A hook that the program sets later
is called without ours: then Python's ``sys.last_value`` is read at the end of the main thread. A
thread's exception is taken where threading calls its hook, whichever that is. In a child of
``multiprocessing``, which prints the exception itself, it is taken as it leaves ``Process.run``. An
exception of a pool's thread is reported when its future keeps it, one of an asyncio task when the
task is done: the program may never ask for it. The values of variables are not read.

Where the job was started with ``--on-exception hold``, the thread is then held, as at a gate, until
the hub lets it die. Its stack is unwound by then, but the traceback still has its frames."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from pardbg_agent import clock
from pardbg_agent.control.inspect import described, traceback_of
from pardbg_agent.life.causes import Root, group_text, root_of
from pardbg_agent.life.own_frames import hide_own, uncounted
from pardbg_agent.wire import DefKind

if TYPE_CHECKING:
    from pardbg_agent.watched_rank import Core

MAX_TEXT: Final = 500
MAX_TOLD: Final = 16
"""Maximum exceptions reported per process: threads of a program may fail by the thousand."""
MAX_KEPT: Final = 64
"""Maximum reported exceptions kept by futures: most are asked for, and tried again."""
MAX_NAME: Final = 80
_POOL: Final = "concurrent.futures.thread"


class UncaughtErrors:
    """Hooks of this process for uncaught exceptions. ``current`` returns the Core to report to."""

    def __init__(self, current: Callable[[], Core | None]) -> None:
        self._current = current
        self._before: list[Callable[..., Any]] = []
        """Hooks that were in place each time ours was installed, the newest last."""
        self._ours = self._uncaught
        self._make_invoke: Callable[[], Callable[..., Any]] | None = None
        """threading's own; None: ours is not installed."""
        self._told = self._kept = 0
        self._keep: Callable[[Any, BaseException | None], None] | None = None
        """``Future.set_exception``; None: ours is not installed."""
        self._make_task: Callable[..., Any] | None = None
        """``BaseEventLoop.create_task``; None: ours is not installed."""
        self._last: BaseException | None = None
        """Exception that ended the main thread, as last reported."""
        self._passing = threading.local()
        """``depth``: number of chained hooks that run in this thread."""

    def install(self) -> None:
        """Chain the hook; a second call does so only if another hook has replaced ours."""
        if self._make_invoke is None:
            self._watch_threads()
        if self._keep is None:
            self._keep, Future.set_exception = Future.set_exception, _keeping(self)  # type: ignore[assignment, method-assign]
        if self._make_task is None and (loop := _event_loop()) is not None:
            self._make_task, loop.create_task = loop.create_task, _telling(self, loop.create_task)
        if sys.excepthook != self._ours:
            self._before.append(sys.excepthook)
            self._told, sys.excepthook = 0, self._ours

    def uninstall(self) -> None:
        """Restore the previous hooks; one that others chained onto stays, and only passes on."""
        if self._before and sys.excepthook == self._ours:
            sys.excepthook = self._before.pop()
        if self._make_invoke is not None and _make_invoke() == self._make_seen:
            threading._make_invoke_excepthook = self._make_invoke  # type: ignore[attr-defined]
            self._make_invoke = None
        if self._keep is not None and getattr(Future.set_exception, "of", None) is self:
            Future.set_exception, self._keep = self._keep, None  # type: ignore[assignment, method-assign]

        loop = _event_loop()
        if self._make_task is not None and getattr(loop.create_task, "of", None) is self:
            loop.create_task, self._make_task = self._make_task, None

    def kept(self, value: BaseException, of: str, task_of: str = "") -> None:
        """Report an exception kept by a future: of a pool's thread, which goes on, or a task."""
        c = self._current()
        if c is not None and c.run is not None and self._kept < MAX_KEPT:
            self._kept += 1
            trace = value.__traceback__
            root = _root(value, trace)
            c.guard.call("excepthook", self._put, c, value, trace, of, root, True, task_of)

    def task_ended(self, task: Any) -> None:
        """Report a task's exception at its end. ``task.exception()`` would mark it as retrieved by
        the program."""
        value = getattr(task, "_exception", None)
        if isinstance(value, Exception):
            name = getattr(task.get_coro(), "__name__", "")
            self.kept(value, name[:MAX_NAME], "asyncio")

    def _watch_threads(self) -> None:
        self._make_invoke = _make_invoke()
        if self._make_invoke is None:
            return  # a threading that we do not know
        threading._make_invoke_excepthook = self._make_seen  # type: ignore[attr-defined]
        for thread in threading.enumerate():
            invoke = getattr(thread, "_invoke_excepthook", None)
            if invoke is not None:
                thread._invoke_excepthook = self._seen(invoke)  # type: ignore[attr-defined]

    def _make_seen(self) -> Callable[..., Any]:
        assert self._make_invoke is not None
        return self._seen(self._make_invoke())

    def _seen(self, invoke: Callable[..., Any]) -> Callable[..., Any]:
        # Nothing here raises an audit event: a program's audit hook that asks for the current
        # thread, of one that Python did not start, comes here again.
        return functools.partial(self._thread_ends, invoke)

    @uncounted
    def _thread_ends(self, invoke: Callable[..., Any], thread: threading.Thread) -> None:
        value = sys.exc_info()[1]
        if value is not None and not isinstance(value, SystemExit) and not self._depth():
            self._tell_and_hold(value, value.__traceback__, thread.name)
            hide_own(value)
        self._pass_on(invoke, thread)

    def main_thread_ends(self) -> None:
        """Report the exception that ends the main thread, if another hook than ours got it."""
        value = getattr(sys, "last_value", None)
        trace = getattr(sys, "last_traceback", None)
        if not isinstance(value, BaseException) or value is self._last or trace is None:
            return
        if trace.tb_frame.f_back is None:  # not of a prompt that goes on
            self._last = value
            self._tell_and_hold(value, trace, "MainThread")

    def child_fails(self, raised: BaseException) -> None:
        """Report an exception that leaves the ``run`` of a multiprocessing child. mp.spawn has
        turned it into SystemExit by then."""
        value: BaseException | None = raised
        if isinstance(raised, SystemExit):
            value = raised.__context__ if raised.code else None
        if value is not None and not isinstance(value, SystemExit):
            self._tell_and_hold(value, value.__traceback__, "MainThread")

    def _uncaught(
        self, kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        """Report an exception, and pass it on to the previous hook; to an older one if that,
        chained to ours, calls us again."""
        depth = self._depth()
        if not depth:
            self._last = value
            self._tell_and_hold(value, trace, "MainThread")
            hide_own(value)
        hooks = [sys.__excepthook__, *self._before]
        self._pass_on(hooks[max(0, len(hooks) - 1 - depth)], kind, value, trace)

    def _depth(self) -> int:
        return getattr(self._passing, "depth", 0)

    def _pass_on(self, hook: Callable[..., Any], *args: Any) -> None:
        self._passing.depth = self._depth() + 1
        try:
            hook(*args)
        except BaseException as error:
            hide_own(error)
            raise
        finally:
            self._passing.depth -= 1

    def _tell_and_hold(
        self, value: BaseException, trace: TracebackType | None, thread: str
    ) -> None:
        c = self._current()
        if c is not None and c.run is not None:
            root = _root(value, trace)
            c.guard.call("excepthook", self._tell, c, value, trace, thread, root)
            c.guard.call("excepthook", _hold, c, value, trace, thread, root)

    def _tell(
        self, c: Core, value: BaseException, trace: TracebackType | None, thread: str,
        root: Root | None,
    ) -> None:  # fmt: skip
        """Write an EXCEPTION definition. It is in the definitions' file at once, so a kill that
        follows does not lose it."""
        if self._told >= MAX_TOLD:
            return
        self._told += 1
        failed = value if root is None or root.implicit else root.value
        if c.out_of_memory is not None and type(failed).__name__ == "OutOfMemoryError":
            c.guard.call("out of memory", c.out_of_memory, failed)
        self._put(c, value, trace, thread, root)

    @staticmethod
    def _put(
        c: Core, value: BaseException, trace: TracebackType | None, thread: str,
        root: Root | None, kept: bool = False, task_of: str = "",
    ) -> None:  # fmt: skip
        c.defs.put(
            DefKind.EXCEPTION, t_ns=clock.now_ns(), type=type(value).__name__,
            text=_said(value, kept), thread=thread, frames=traceback_of(trace), step=c.step,
            **({"kept": True} if kept else {}), **({"task_of": task_of} if task_of else {}),
            **_causes(root, kept),
        )  # fmt: skip


def _keeping(errors: UncaughtErrors) -> Callable[[Any, BaseException | None], None]:
    """Return a ``Future.set_exception`` that reports exceptions of a pool's threads."""
    original = Future.set_exception

    @uncounted
    @functools.wraps(original)
    def set_exception(future: Any, exception: BaseException | None) -> None:
        original(future, exception)
        caller = sys._getframe(1)
        if exception is not None and caller.f_globals.get("__name__") == _POOL:
            errors.kept(exception, threading.current_thread().name)

    set_exception.of = errors  # type: ignore[attr-defined]
    return set_exception


def _event_loop() -> Any:
    """Return asyncio's class of loops, if it was imported."""
    return getattr(sys.modules.get("asyncio.base_events"), "BaseEventLoop", None)


def _telling(errors: UncaughtErrors, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``create_task`` that reports the exception of its task."""

    @uncounted
    @functools.wraps(original)
    def create_task(*args: Any, **kwargs: Any) -> Any:
        try:
            task = original(*args, **kwargs)
        except BaseException as error:
            hide_own(error)
            raise
        with contextlib.suppress(Exception):  # a factory's own kind of task
            task.add_done_callback(ended)
        return task

    @uncounted
    def ended(task: Any) -> None:
        with contextlib.suppress(Exception):
            errors.task_ended(task)

    create_task.of = errors  # type: ignore[attr-defined]
    return create_task


def _make_invoke() -> Any:
    return getattr(threading, "_make_invoke_excepthook", None)


class Children:
    """Hook for processes that multiprocessing starts, by any method: ``fails(error)`` is called in
    them with an exception that leaves their ``run``."""

    def __init__(self, fails: Callable[[BaseException], None]) -> None:
        self._fails = fails
        self._undo: Callable[[], None] = lambda: None

    def watch(self, module: ModuleType) -> None:
        """Hook the processes of ``module``, which is multiprocessing.process."""
        base = module.BaseProcess
        original, fails = base._bootstrap, self._fails

        @uncounted
        @functools.wraps(original)
        def bootstrap(process: Any, *args: Any, **kwargs: Any) -> Any:
            process.run = functools.partial(_run, process.run, fails)
            return original(process, *args, **kwargs)

        base._bootstrap = bootstrap
        self._undo = lambda: setattr(base, "_bootstrap", original)

    def leave(self) -> None:
        self._undo()
        self._undo = lambda: None


@uncounted
def _run(run: Callable[[], object], fails: Callable[[BaseException], None]) -> None:
    try:
        run()
    except BaseException as error:
        fails(error)
        hide_own(error)
        raise


def _hold(
    c: Core, value: BaseException, trace: TracebackType | None, thread: str, root: Root | None
) -> None:
    """Hold a failed thread until the hub lets it die, or the hub is gone. Exceptions that end a
    program on purpose (KeyboardInterrupt, SystemExit) are not held."""
    if c.run is None or not c.run.hold_exceptions or not isinstance(value, Exception):
        return
    if c.sender is None or not c.sender.alive:
        return  # without a sender the hold could not be ended
    where = "" if thread == "MainThread" else f" in thread {thread}"
    roots = () if root is None or root.implicit else (root, *root.others)
    causes = "; ".join(_cause(one, kept=False)["text"] for one in roots)
    of = f" (from {causes})" if causes else ""
    try:
        c.gate.hold_raised(f"exception{where} {_last_line(value)}{of}"[:MAX_TEXT], trace)
    except KeyboardInterrupt:
        pass  # it dies of its own exception, now


def _causes(root: Root | None, kept: bool) -> dict[str, Any]:
    """Return the fields of an EXCEPTION for the causes of the exception, if it has any."""
    with contextlib.suppress(Exception):
        if root is not None:
            also = [_cause(one, kept) for one in root.others]
            return {"cause": _cause(root, kept), **({"also": also} if also else {})}
    return {}


def _cause(root: Root, kept: bool) -> dict[str, Any]:
    text = root.passed_on[:MAX_TEXT] or _said(root.value, kept)
    kind = (
        text.partition(":")[0].rpartition(".")[2] if root.passed_on else type(root.value).__name__
    )
    how = {"implicit": True} if root.implicit else {}
    ranks = {"ranks": root.ranks} if root.ranks else {}
    return {"type": kind, "text": text, "frames": root.frames, **how, **ranks}


def _root(value: BaseException, trace: TracebackType | None) -> Root | None:
    with contextlib.suppress(Exception):  # reported without a cause
        return root_of(value, trace)
    return None


def _said(value: BaseException, kept: bool) -> str:
    """Return the last line that Python prints for an exception. For one that a future keeps, Python
    may print none: then no code of the program runs for it."""
    return _first_words(described(value), value) if kept else _last_line(value)


def _last_line(value: BaseException) -> str:
    of = group_text(value)  # Python's would ask its members, too
    if of is not None:
        return _first_words(f"{type(value).__qualname__}: {of}", value)
    return _first_words("".join(traceback.format_exception_only(value)), value)


def _first_words(said: str, value: BaseException) -> str:
    lines = [line.strip() for line in said.splitlines()]
    lines = [line for line in lines if line and not line.startswith("File ")]
    # A text that begins with a new line; one that RPC took over from another worker has several.
    words = 1 + next((at for at, line in enumerate(lines[:4]) if not line.endswith(":")), 4)
    return " ".join(lines[:words])[:MAX_TEXT] or type(value).__name__
