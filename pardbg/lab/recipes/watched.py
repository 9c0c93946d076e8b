"""Reports of a recipe to pardbg, if pardbg is installed. Without pardbg every call does nothing."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial

try:
    import pardbg_agent
except ImportError:  # a recipe runs anywhere torch does
    pardbg_agent = None  # type: ignore[assignment]


def log(**numbers: float) -> None:
    """Log numbers of this step, for the screen: ``log(loss=2.5)``."""
    if pardbg_agent is not None:
        pardbg_agent.log(**numbers)


def span(
    name: str, part: int = 0, parts: int = 0, chunk: int = -1
) -> AbstractContextManager[object]:
    """Return a context that names a span of time (``with span("push"):``), and the messages in it.
    ``part`` of ``parts``, from 1, and ``chunk``: progress of an algorithm of many messages."""
    return nullcontext() if pardbg_agent is None else pardbg_agent.span(name, part, parts, chunk)


def step(number: int | None = None) -> None:
    """Report the end of a training step, on a rank without an optimizer."""
    if pardbg_agent is not None:
        pardbg_agent.step(number)


def note(key: str, value: str) -> None:
    """Report a fact of this program that is shown with its figures. Call it after the process group
    exists."""
    core = getattr(sys.modules.get("pardbg_agent.active"), "CORE", None)
    if core is not None:
        from pardbg_agent.wire import DefKind

        core.guard.call("note", partial(core.defs.put, DefKind.NOTE, key=key, value=value))
