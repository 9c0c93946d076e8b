"""What an exception came from: the end of its chain of causes.

Nothing of a program's own class is called for it: BaseException's own slots are read.
"""

from __future__ import annotations

import traceback
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple

from pardbg_agent.control.inspect import MAX_FRAMES, frames_told
from pardbg_agent.ctrl.agent_messages import Frame

MAX_LINKS: Final = 8
_SLOTS: Final = vars(BaseException)
_CAUSE: Final = _SLOTS["__cause__"].__get__
_CONTEXT: Final = _SLOTS["__context__"].__get__
_SUPPRESSES: Final = _SLOTS["__suppress_context__"].__get__
_TRACE: Final = _SLOTS["__traceback__"].__get__
_CHECKPOINT: Final = ("torch.distributed.checkpoint.api", "CheckpointException")
_TEXTS: Final = ("RemoteTraceback", "_RemoteTraceback")
"""Causes by which pools of processes pass on a traceback's text: the exception is its own cause."""
Lines = list[tuple[FrameType, int]]


class Root(NamedTuple):
    """The exception that another one came from."""

    value: BaseException
    frames: list[Frame]
    """Outermost first, from where the other one's begin."""
    implicit: bool
    """It was being handled as the other one was raised; nobody said that it is the cause."""


def root_of(value: BaseException, trace: TracebackType | None) -> Root | None:
    """Return what ``value`` was raised from, by ``raise … from`` alone if it begins so: what a
    program says of a failure is more than what it tried before. None: it has no cause."""
    lines: Lines = list(traceback.walk_tb(trace))
    at, implicit, met = value, False, {id(value)}
    for _ in range(MAX_LINKS):
        link = _CAUSE(at)
        if link is None and (implicit or at is value) and not _SUPPRESSES(at):
            link = _CONTEXT(at)
            implicit = implicit or link is not None
        if link is None or id(link) in met or type(link).__name__ in _TEXTS:
            break
        met.add(id(link))
        at, lines = link, _stack(lines, _TRACE(link))
    part = _part(at)
    if part is not None:
        return Root(*part, implicit)
    return None if at is value else Root(at, frames_told(lines), implicit)


def _stack(above: Lines, trace: TracebackType | None) -> Lines:
    """Return the stack in which a cause was raised: its traceback begins in the frame that caught
    it, which the traceback of what it caused goes through."""
    below: Lines = list(traceback.walk_tb(trace))
    if not below:
        return above
    at = next((at for at, (frame, _) in enumerate(above) if frame is below[0][0]), 0)
    return above[:at] + below


def _part(value: BaseException) -> tuple[BaseException, list[Frame]] | None:
    """Return what the first rank raised of those that a checkpoint failed on. It is a copy: its
    stack is told beside it."""
    kind = type(value)
    parts: Any = (kind.__module__, kind.__name__) == _CHECKPOINT and vars(value).get("_failures")
    for raised, summary in parts.values() if parts else ():
        return raised, [(one.filename, one.lineno or 0, one.name) for one in summary[-MAX_FRAMES:]]
    return None
