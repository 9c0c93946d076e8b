"""Stacks of this process's threads. Reads frames only, and the exception that the main thread
handles: no locals, no evaluation."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from types import FrameType, TracebackType, WrapperDescriptorType
from typing import Any, Final

from pardbg_agent.control.awaiting import awaited, other_tasks
from pardbg_agent.ctrl.agent_messages import Frame, Thread
from pardbg_agent.life.own_frames import OWN, is_own
from pardbg_agent.tables.code_files import is_program

MAX_THREADS: Final = 64
MAX_FRAMES: Final = 64
MAX_WALKED: Final = 1000
MAX_HANDLED: Final = 120
"""Maximum characters of an exception that is being handled."""
_PLAIN: Final = (str, bytes, int, float, bool, type(None))
_MAX_BYTES: Final = 100_000
_ARGS: Final = vars(BaseException)["args"].__get__
_OF_FILES: Final = tuple(
    vars(OSError)[name].__get__ for name in ("errno", "strerror", "filename", "filename2")
)
_GATE: Final = OWN + os.path.join("control", "gate.py")
_CALL: Final = OWN + os.path.join("hooks", "comm", "host_calls.py")
_WAIT: Final = OWN + os.path.join("hooks", "ops", "works.py")
_OPS: Final = OWN + os.path.join("hooks", "ops", "")


def stacks(
    skip_thread: int | None = None,
    raised: Mapping[int, TracebackType] | None = None,
    standing: Mapping[int, str] | None = None,
) -> tuple[Thread, ...]:
    """Return all threads' stacks, the main thread first, without the agent's own frames and
    ``skip_thread`` (an ident); after a thread the other tasks of its event loop.

    ``raised``: threads that are held at an exception, by ident: their stack is the traceback's.
    ``standing``: threads that are in an "op" or a "wait" in C++, which has no frames."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    found = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)
    out = []
    for ident, frame in found[:MAX_THREADS]:
        if ident == skip_thread:
            continue
        trace = raised.get(ident) if raised else None
        known = standing.get(ident, "") if standing else ""
        frames = traceback_of(trace) if trace is not None else frames_of(frame) + awaited(frame)
        inside = (inside_own(frame) or known) if trace is None else "exception"
        name = names.get(ident, f"thread {ident}")
        handles = handled(ident) if ident == main and trace is None else ""
        out.append(Thread(name, ident == main, tuple(frames), inside, handles))
        out += other_tasks(frame)
    return tuple(out)


def handled(ident: int) -> str:
    """Return the exception whose ``except`` or ``finally`` a thread runs, as text; empty: none."""
    found: Any = None
    with contextlib.suppress(Exception):  # an audit hook may refuse it
        found = getattr(sys, "_current_exceptions")().get(ident)  # noqa: B009 - private
    value = found[1] if isinstance(found, tuple) else found  # (type, value, traceback) until 3.12
    return "" if value is None else " ".join(described(value).split())[:MAX_HANDLED]


def described(value: BaseException) -> str:
    """Return ``KeyError: 'b'``; the type alone if its text would run code of the program, which may
    block: a ``__str__`` of its own, or arguments that are not plain values."""
    of = type(value)
    said: tuple[object, ...] = _ARGS(value)
    if issubclass(of, OSError):
        said += tuple(read(value) for read in _OF_FILES)
    plain, text = (type(part) in _PLAIN and sys.getsizeof(part) < _MAX_BYTES for part in said), ""
    if isinstance(of.__str__, WrapperDescriptorType) and all(plain):
        with contextlib.suppress(Exception):  # a number of more digits than Python writes
            text = str(value)
    return f"{of.__name__}: {text}" if text else of.__name__


def traceback_of(trace: TracebackType | None) -> list[Frame]:
    """Return an exception's frames without our own, outermost first; the innermost MAX_FRAMES."""
    return frames_told(traceback.walk_tb(trace))


def frames_told(lines: Iterable[tuple[FrameType, int]]) -> list[Frame]:
    """Return (frame, line) pairs in the form of ``traceback_of``."""
    found = [
        (frame.f_code.co_filename, number, frame.f_code.co_name)
        for frame, number in lines
        if not is_own(frame.f_code.co_filename)
    ]
    return found[-MAX_FRAMES:]


def inside_own(frame: FrameType | None) -> str:
    """Return the call that the agent's frames wrap, if these are the thread's innermost."""
    while frame is not None and is_own(frame.f_code.co_filename):
        file = frame.f_code.co_filename
        if file == _GATE:
            return "gate"
        if file.startswith(_WAIT):
            return "wait"
        if file.startswith(_OPS):
            return "op"
        if file.startswith(_CALL):
            return "call"
        frame = frame.f_back
    return ""


def frames_of(frame: FrameType | None) -> list[Frame]:
    """Return the frames of a stack, outermost first; MAX_FRAMES at most. Frames inside a gate are
    left out: a held rank is shown where it met the gate."""
    out: list[Frame] = []
    while frame is not None and len(out) < MAX_WALKED:
        code = frame.f_code
        if code.co_filename == _GATE:
            out.clear()
        if not is_own(code.co_filename):
            out.append((code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return _shortened(out)[::-1]


def _shortened(innermost_first: list[Frame]) -> list[Frame]:
    """Return at most MAX_FRAMES frames: half of them the innermost, the others non-library ones."""
    if len(innermost_first) <= MAX_FRAMES:
        return innermost_first
    inner, rest = innermost_first[: MAX_FRAMES // 2], innermost_first[MAX_FRAMES // 2 :]
    own = [f for f in rest if is_program(f[0])]
    return inner + own[: MAX_FRAMES // 2]
