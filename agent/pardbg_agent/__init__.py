"""pardbg's agent: what a training program may call. All of it is optional.

Every function does nothing, at the price of one look-up, unless pardbg watches this rank.
Importing this package imports neither torch nor zmq.
"""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Any

from pardbg_agent import active

__all__ = ["attach", "breakpoint", "detach", "log", "span", "step"]
__version__ = "0.1.0"


def attach(run: str | os.PathLike[str] | None = None) -> bool:
    """Start watching from inside the program (``run``: the run directory; default ``$PARDBG``).
    True if the hooks are in place. Without a run it does nothing."""
    if run is not None:
        os.environ["PARDBG"] = os.fspath(run)
    if not os.environ.get("PARDBG"):
        return False
    from pardbg_agent import autostart

    return autostart.install_hooks()


def detach() -> None:
    """Restore everything the agent patched and stop it in this process."""
    if "pardbg_agent.core" in sys.modules:
        from pardbg_agent import autostart

        autostart.remove_hooks()


class _Span:
    """A named piece of the program's time, shown on the rank's user lane."""

    __slots__ = ("_name", "_place", "_t0")

    def __init__(self, name: str, place: tuple[int, int, int]) -> None:
        self._name, self._place = name, place
        self._t0 = 0

    def __enter__(self) -> _Span:
        self._t0 = time.monotonic_ns()
        self._say(None, False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._say(time.monotonic_ns(), kind is not None)

    def _say(self, t1: int | None, failed: bool) -> None:
        core = active.CORE
        if core is not None:
            core.guard.call("span", core.span, self._name, self._place, self._t0, t1, failed)


class _NoSpan:
    __slots__ = ()

    def __enter__(self) -> _NoSpan:
        return self

    def __exit__(self, *details: object) -> None:
        return None


_NO_SPAN = _NoSpan()


def span(name: str, part: int = 0, parts: int = 0, chunk: int = -1) -> _Span | _NoSpan:
    """``with pardbg_agent.span("tokenize"):`` shows it in the timeline, and names the sends and
    receives inside. ``part`` of ``parts``, from 1, and ``chunk``, from 0: what an algorithm of
    many messages is at, as in ``span("reduce-scatter", part=2, parts=6, chunk=1)``."""
    return _NO_SPAN if active.CORE is None else _Span(name, (part, parts, chunk))


def log(**numbers: Any) -> None:
    """Numbers of this step: ``log(loss=loss.item(), lr=lr)``. A tensor is read at once."""
    core = active.CORE
    if core is not None:
        core.guard.call("log", core.log, numbers)


def step(n: int | None = None) -> None:
    """A training step ended here (its number, if given). From the first call on, pardbg takes
    step bounds from these calls alone."""
    core = active.CORE
    if core is not None:
        core.guard.call("step", core.explicit_step, n)


def breakpoint(name: str = "") -> None:
    """A place where a paused rank stops."""
    core = active.CORE
    if core is not None and core.gate.closed:
        from pardbg_agent.wire import Gate

        core.gate.wait(Gate.BREAK, f"breakpoint {name}".rstrip(), lambda: {"name": name})
