"""What a recipe tells pardbg, if pardbg is there. Without it every call does nothing."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial

try:
    import pardbg_agent
except ImportError:  # a recipe runs anywhere torch does
    pardbg_agent = None  # type: ignore[assignment]


def log(**numbers: float) -> None:
    """Numbers of this step, for the screen: ``log(loss=2.5)``."""
    if pardbg_agent is not None:
        pardbg_agent.log(**numbers)


def span(
    name: str, part: int = 0, parts: int = 0, chunk: int = -1
) -> AbstractContextManager[object]:
    """``with span("push"):`` names a piece of time, and the messages sent and received in it.
    ``part`` of ``parts``, from 1, and ``chunk``: what an algorithm of many messages is at."""
    return nullcontext() if pardbg_agent is None else pardbg_agent.span(name, part, parts, chunk)


def step(number: int | None = None) -> None:
    """A training step ended, on a rank that has no optimizer to show it."""
    if pardbg_agent is not None:
        pardbg_agent.step(number)


def note(key: str, value: str) -> None:
    """A fact of this program that belongs beside its figures. Call it after the process group is
    there."""
    core = getattr(sys.modules.get("pardbg_agent.active"), "CORE", None)
    if core is not None:
        from pardbg_agent.wire import DefKind

        core.guard.call("note", partial(core.defs.put, DefKind.NOTE, key=key, value=value))
