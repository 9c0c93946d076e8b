"""DAP client (VS Code and others) in a held rank: debugpy, which the program must have installed,
on loopback in this process.

[Note: a led rank] The held thread stays at its gate until a client has come and is configured. Then
it stands in the debugger, at the program's frame: nothing has moved yet. The client's first step
lets it out; from then on it is *led*: it passes gates, and stops where its client stops it. The hub
has other ranks follow as far as its ops need them. The end comes from the client (it detaches or
dies) or from the hold (``continue``, its lease, a peer's timeout that is near): the connection
closes, debugpy lets the thread go, and its next gate is as the hub has left it. debugpy is used
below its public API (pydevd) where that lacks a call: to stop at a frame further out, to trace one
thread alone, and to leave no trace function behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Final

from pardbg_agent import clock
from pardbg_agent.control import evaluate
from pardbg_agent.control.dap_stream import LOOK_S, LOOPBACK, carry, is_ours, listener
from pardbg_agent.control.gate import GateControl
from pardbg_agent.life.own_frames import OWN

ENTER_S: Final = 10.0
"""Maximum time from a client's coming to debugpy's answer, in s."""
CONFIGURED_S: Final = 0.01
"""Interval between checks whether the client is configured, in s."""
_SUSPENDED: Final = 2
"""pydevd's STATE_SUSPEND."""
_SET_BREAK: Final = 111
"""pydevd's CMD_SET_BREAK: the client is shown a breakpoint."""


class Debugger(threading.Thread):
    """Debugging session of one client, from the opening of its port to its end."""

    def __init__(self, gate: GateControl, before: Debugger | None = None) -> None:
        super().__init__(name="pardbg debugger", daemon=True)
        self._agents = (self, threading.current_thread())
        """Threads that debugpy must leave alone: it would stop them with the others."""
        self._mark(True)
        self.since_ns = 0
        self._gate, self._before, self._over = gate, before, threading.Event()
        self._listener = listener()
        self.port = int(self._listener.getsockname()[1])
        self._led: threading.Thread | None = None
        self._trace_before: Any = None

    # -- the agent's thread

    def _mark(self, on: bool) -> None:
        for thread in self._agents:
            thread.__dict__ |= {"pydev_do_not_trace": on, "is_pydev_daemon_thread": on}

    @property
    def waits(self) -> bool:
        """Return whether the session is not over."""
        return self.is_alive() and not self._over.is_set()

    @property
    def leads(self) -> int:
        """Return the ident of the led thread; 0: none is led."""
        return (self._led.ident or 0) if self._led is not None else 0

    def stands(self) -> bool:
        """Return whether the led thread is stopped in the debugger."""
        info = getattr(self._led, "additional_info", None)
        return getattr(info, "pydev_state", 0) == _SUSPENDED and not self._over.is_set()

    def end(self) -> None:
        """Disconnect the client; the led thread runs on. Returns at once."""
        self._over.set()

    # -- its own thread

    def run(self) -> None:
        """Wait for a client, and relay its messages to debugpy and back."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        if self._before is not None:
            self._before.join()  # its end removes what this debugger would set up
            self._before = None
            self._mark(True)
        with contextlib.suppress(OSError, ValueError):
            with self._listener:
                client = self._client()
            if client is not None:
                with client:
                    self._serve(client)
        self._leave()
        if "pydevd" in sys.modules:
            with contextlib.suppress(Exception):  # whatever it is, the rank goes on
                self._untrace()
        self._mark(False)

    def _client(self) -> socket.socket | None:
        self._listener.settimeout(LOOK_S)
        while self._gate.holding and not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                client = self._listener.accept()[0]
                if is_ours(client):
                    return client
                client.close()
        return None

    def _serve(self, client: socket.socket) -> None:
        with listener() as inner:
            inner.settimeout(ENTER_S)
            enter = partial(self._enter, inner.getsockname()[1])
            until = clock.now_ns() + int(ENTER_S * 1e9)
            while not self._gate.ask(enter):  # between two gates
                if self._over.wait(LOOK_S) or not self._gate.holding or clock.now_ns() > until:
                    return
            debugger = inner.accept()[0]
        with debugger:
            carry(client, debugger, self._over, self._leave)

    def _leave(self) -> None:
        """End the lead: the rank's next gate is as the hub has left it."""
        self._over.set()
        self._gate.lead_no_more(self)

    def _untrace(self) -> None:
        """Remove debugpy's trace functions, which slow every call down."""
        import pydevd
        import pydevd_tracing
        from _pydevd_bundle import pydevd_constants

        pydevd.stoptrace()
        pydevd_constants.set_global_debugger(None)  # its own reader may still be about to
        if not pydevd_constants.PYDEVD_USE_SYS_MONITORING:
            # A function for each thread, which only that thread can remove.
            pydevd_tracing.set_trace_to_threads(self._off, create_dummy_thread=False)

    def _off(self, frame: FrameType | None, *_: object) -> None:
        """Remove the tracing of a thread, at its next call: the last one that is traced."""
        led = threading.get_ident() == self.leads
        _settrace(self._trace_before if led else None)
        while frame is not None:
            frame.f_trace = None
            frame = frame.f_back

    # -- the held thread

    def _enter(self, port: int, innermost: evaluate.From) -> None:
        """Connect debugpy, wait for the client to be ready, and stand at the program's frame until
        the client goes on."""
        place = evaluate.pick(innermost, 0)
        if place is None or isinstance(innermost, TracebackType):
            self._over.set()
            return
        try:
            self._connect(port)
            if not self._over.is_set():
                self._stand(place.frame)
        except (Exception, SystemExit):  # noqa: BLE001 - pydevd exits where it cannot connect
            self._over.set()
        if self._over.is_set():  # the client left, and the rank has not moved
            self._gate.lead_no_more(self)

    def _stand(self, frame: FrameType) -> None:
        thread = self._led = threading.current_thread()
        self.since_ns = clock.now_ns()
        from _pydevd_bundle.pydevd_constants import get_global_debugger

        pydb = get_global_debugger()
        pydb.set_suspend(thread, _SET_BREAK)
        if not self._gate.lead(self):
            self._over.set()
            return
        pydb.do_wait_suspend(thread, frame, "line", None)

    def _connect(self, port: int) -> None:
        with _quiet():
            import debugpy
            import debugpy.server  # has pydevd found and set up
            import pydevd

        global _leading
        if _leading is None:
            os.register_at_fork(
                before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child
            )
        _leading = self
        self._trace_before = sys.gettrace()
        _forget_client()
        pydevd.settrace(
            host=LOOPBACK, port=port, protocol="dap", suspend=False, trace_only_current_thread=True,
            patch_multiprocessing=False, wait_for_ready_to_run=False, notify_stdin=False,
            dont_trace_start_patterns=(OWN, os.path.dirname(str(debugpy.__file__))),
        )  # fmt: skip
        while not pydevd._is_attached() and not self._over.wait(CONFIGURED_S):
            pass


# -- a loader's worker that a led rank forks has none of debugpy's threads: it would stop at a line
# for ever, or at a lock of theirs on the way there. So nothing is traced while it is forked.

_leading: Debugger | None = None
"""Newest debugger that had a client."""
_settrace: Final = sys.settrace
"""Python's own sys.settrace, which debugpy replaces."""
_traced: Any = None


def _before_fork() -> None:
    global _traced
    here = _leading is not None and _leading.leads == threading.get_ident()
    _traced = sys.gettrace() if here else None
    if _traced is not None:
        _settrace(None)


def _in_parent() -> None:
    if _traced is not None:
        _settrace(_traced)


def _in_child() -> None:
    from _pydevd_bundle import pydevd_constants

    pydb = pydevd_constants.get_global_debugger()
    if pydb is None:
        return
    pydb.pydb_disposed = True
    pydevd_constants.set_global_debugger(None)
    if pydevd_constants.PYDEVD_USE_SYS_MONITORING:
        from _pydevd_sys_monitoring import pydevd_sys_monitoring

        pydevd_sys_monitoring.stop_monitoring(all_threads=True)
    else:
        sys.settrace = _settrace


def _forget_client() -> None:
    """Drop debugpy's state of this thread from an earlier client, which would be wrong now."""
    from _pydevd_bundle.pydevd_constants import PYDEVD_USE_SYS_MONITORING

    threading.current_thread().additional_info = None  # type: ignore[attr-defined]
    if PYDEVD_USE_SYS_MONITORING:
        from _pydevd_sys_monitoring import pydevd_sys_monitoring

        pydevd_sys_monitoring.reset_thread_local_info()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence debugpy's warning about Python's frozen modules, on the job's stderr, during its
    import."""
    name = "PYDEVD_DISABLE_FILE_VALIDATION"
    had = name in os.environ
    os.environ.setdefault(name, "1")
    yield
    if not had:
        del os.environ[name]
