"""Where the tasks of an event loop (asyncio's, trio's) stand that has nothing to run: their awaits
are in no thread's stack. Reads frames of coroutines; runs nothing of the program."""

from __future__ import annotations

import sys
from types import CoroutineType, FrameType, GeneratorType
from typing import Any, Final

from pardbg_agent.ctrl.agent_messages import Frame, Thread

_LOOP: Final = "/asyncio/base_events.py"
_RUNNER: Final = "/asyncio/runners.py"
_TRIO: Final = "/trio/_core/_run.py"
_DEPTH: Final = 8
"""Maximum frames from the loop's turn to its caller's ``run_until_complete``."""
_MAX_TASKS: Final = 16
_MAX_AWAITS: Final = 64


def awaited(frame: FrameType | None) -> list[Frame]:
    """Return the frames that the main task of a thread's loop awaits in, outermost first; empty
    where a task runs, or the thread runs no loop that is known."""
    return _awaits(_loop(frame)[1])


def other_tasks(frame: FrameType | None) -> list[Thread]:
    """Return the tasks of a thread's loop that its main task does not wait for; one of several
    tasks at the same place."""
    loop, main = _loop(frame)
    mains, found = _awaits(main), dict[tuple[Frame, ...], Thread]()
    for task in sorted(
        map(_task, _all_tasks(loop)), key=lambda task: (len(task.thread), task.thread)
    ):
        frames = task.frames
        if frames and list(frames) != mains[-len(frames) :]:
            found.setdefault(frames, task)
    return list(found.values())[:_MAX_TASKS]


def _all_tasks(loop: Any) -> list[Any]:
    tasks, runner = sys.modules.get("asyncio.tasks"), _trio("Runner")
    try:
        if loop is not None and type(loop) is runner:
            return list(loop.tasks)
        every = tasks.all_tasks(loop) if loop is not None and tasks is not None else ()
        return [task for task in every if type(task) in _kinds(tasks)]
    except RuntimeError:  # other threads make tasks all the time
        return []


def _task(task: Any) -> Thread:
    awaits = tuple(_awaits(task))
    if type(task) is _trio("Task"):
        return Thread(str(task.name).rpartition(".")[2], frames=awaits, task_of="trio")
    return Thread(str(task.get_name()), frames=awaits, task_of="asyncio")


def _trio(name: str) -> Any:
    """Return a class of trio's; None where the program has not imported it."""
    return getattr(sys.modules.get("trio._core._run"), name, None)


def _loop(frame: FrameType | None) -> tuple[Any, Any]:
    """Return (a thread's loop, the task that it runs for); None: no loop, or no end of the loop."""
    turn = None if frame is None else frame.f_back
    if frame is None or turn is None:
        return None, None
    if _is(frame, "run", _RUNNER):  # a loop in C, as uvloop's
        return getattr(frame.f_locals.get("self"), "_loop", None), frame.f_locals.get("task")
    if _is(turn, "run", _TRIO) and frame.f_code.co_name == "get_events":
        runner = turn.f_locals.get("runner")
        return runner, getattr(runner, "main_task", None)
    if frame.f_code.co_name != "select" or not _is(turn, "_run_once", _LOOP):
        return None, None
    at: FrameType | None = turn
    for _ in range(_DEPTH):
        if at is None or _is(at, "run_until_complete", _LOOP):
            break
        at = at.f_back
    return turn.f_locals.get("self"), at and at.f_locals.get("future")


def _is(frame: FrameType, name: str, file: str) -> bool:
    return frame.f_code.co_name == name and frame.f_code.co_filename.endswith(file)


def _kinds(tasks: Any) -> tuple[Any, ...]:
    return tuple(getattr(tasks, name, None) for name in ("Task", "_PyTask"))


def _awaits(task: Any) -> list[Frame]:
    """Follow a task, and the task that it waits for, as long as they are asyncio's own, or trio's:
    at the end of a nursery, one of its children."""
    tasks, out = sys.modules.get("asyncio.tasks"), list[Frame]()
    for _ in range(_MAX_TASKS):
        if type(task) is _trio("Task"):
            out += _frames(task.coro)
            ends = any(function == "_nested_child_finished" for _, _, function in out[-2:])
            task = _child(task) if ends else None
            continue
        if type(task) not in _kinds(tasks) or task.done():
            break
        out += _frames(task.get_coro())
        task = getattr(task, "_fut_waiter", None)
        if type(task) is getattr(tasks, "_GatheringFuture", None):
            waits = (child for child in getattr(task, "_children", ()) if not child.done())
            task = next(waits, None)
    return out


def _child(task: Any) -> Any:
    """Return a task that the innermost nursery of one of trio's waits for."""
    nurseries: list[Any] = task.child_nurseries
    try:
        return min(nurseries[-1].child_tasks, key=lambda child: child.name)
    except (IndexError, ValueError, RuntimeError):  # there is none any more
        return None


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
