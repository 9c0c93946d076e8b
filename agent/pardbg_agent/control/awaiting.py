"""Where an asyncio program stands whose event loop has nothing to run: its main task's awaits. They
are in no thread's stack. Reads frames of coroutines; runs nothing of the program."""

from __future__ import annotations

import sys
from types import CoroutineType, FrameType, GeneratorType
from typing import Any, Final

from pardbg_agent.ctrl.agent_messages import Frame

_LOOP: Final = "/asyncio/base_events.py"
_DEPTH: Final = 8
"""Frames from the loop's turn to its caller's ``run_until_complete``."""
_MAX_TASKS: Final = 16
_MAX_AWAITS: Final = 64


def awaited(frame: FrameType | None) -> list[Frame]:
    """Return the frames that the main task of a thread's loop awaits in, outermost first; empty
    where a task runs, or the thread runs no loop of asyncio's."""
    turn = None if frame is None else frame.f_back
    if frame is None or frame.f_code.co_name != "select" or turn is None or not _of(turn):
        return []
    at: FrameType | None = turn
    for _ in range(_DEPTH):
        if at is None or (_of(at) and at.f_code.co_name == "run_until_complete"):
            break
        at = at.f_back
    return [] if at is None else _awaits(at.f_locals.get("future"))


def _of(frame: FrameType) -> bool:
    return frame.f_code.co_filename.endswith(_LOOP)


def _awaits(task: Any) -> list[Frame]:
    """Follow a task, and the task that it waits for, as long as they are asyncio's own."""
    tasks, out = sys.modules.get("asyncio.tasks"), list[Frame]()
    kinds = tuple(getattr(tasks, name, None) for name in ("Task", "_PyTask"))
    for _ in range(_MAX_TASKS):
        if type(task) not in kinds or task.done():
            break
        out += _frames(task.get_coro())
        task = getattr(task, "_fut_waiter", None)
        if type(task) is getattr(tasks, "_GatheringFuture", None):
            waits = (child for child in getattr(task, "_children", ()) if not child.done())
            task = next(waits, None)
    return out


def _frames(of: Any) -> list[Frame]:
    out: list[Frame] = []
    for _ in range(_MAX_AWAITS):
        if isinstance(of, CoroutineType):
            frame, of = of.cr_frame, of.cr_await
        elif isinstance(of, GeneratorType):
            frame, of = of.gi_frame, of.gi_yieldfrom
        else:
            break
        if frame is None:
            break
        out.append((frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
    return out
