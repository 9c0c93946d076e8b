"""Where the threads of this process are. Reads frames only: no locals, no evaluation."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Mapping
from types import FrameType, TracebackType
from typing import Any, Final

from pardbg_agent.life.own_frames import OWN, is_own
from pardbg_agent.tables.code_files import is_program

MAX_THREADS: Final = 64
MAX_FRAMES: Final = 64
MAX_WALKED: Final = 1000
_GATE: Final = OWN + os.path.join("control", "gate.py")
_CALL: Final = OWN + os.path.join("hooks", "comm", "host_calls.py")
_WAIT: Final = OWN + os.path.join("hooks", "ops", "works.py")
_OPS: Final = OWN + os.path.join("hooks", "ops", "")


def stacks(
    skip_thread: int | None = None,
    raised: Mapping[int, TracebackType] | None = None,
    standing: Mapping[int, str] | None = None,
) -> list[dict[str, Any]]:
    """Return [{"thread", "main", "frames": [[file, line, function], ...], "inside"}], outermost
    frame first, the main thread first. The agent's own frames and ``skip_thread`` (an ident) are
    left out; ``inside`` says what they were around: "gate", "wait" (for an op), "op" (its issue),
    "call" (one that may block: life.calls).

    ``raised``: threads that are held at an exception, by ident. They stand where it was raised:
    "exception". ``standing``: those that are in an "op" or a "wait" in C++, which has no frames."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    found = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)
    out = []
    for ident, frame in found[:MAX_THREADS]:
        if ident == skip_thread:
            continue
        trace = raised.get(ident) if raised else None
        known = standing.get(ident, "") if standing else ""
        out.append(
            {
                "thread": names.get(ident, f"thread {ident}"),
                "main": ident == main,
                "frames": frames_of(frame) if trace is None else traceback_of(trace),
                "inside": (_inside(frame) or known) if trace is None else "exception",
            }
        )
    return out


def traceback_of(trace: TracebackType | None) -> list[list[Any]]:
    """Return [file, line, function] of an exception, outermost first; the innermost MAX_FRAMES,
    without our own."""
    found = [
        [frame.f_code.co_filename, number, frame.f_code.co_name]
        for frame, number in traceback.walk_tb(trace)
        if not is_own(frame.f_code.co_filename)
    ]
    return found[-MAX_FRAMES:]


def _inside(frame: FrameType | None) -> str:
    """Return what the agent's innermost frames are around, if they are the thread's innermost."""
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


def frames_of(frame: FrameType | None) -> list[list[Any]]:
    """Return [file, line, function] of a stack, outermost first; MAX_FRAMES of them. Without what a
    gate runs in to wait: a held rank is where it met the gate."""
    out: list[list[Any]] = []
    while frame is not None and len(out) < MAX_WALKED:
        code = frame.f_code
        if code.co_filename == _GATE:
            out.clear()
        if not is_own(code.co_filename):
            out.append([code.co_filename, frame.f_lineno or 0, code.co_name])
        frame = frame.f_back
    return _shortened(out)[::-1]


def _shortened(innermost_first: list[list[Any]]) -> list[list[Any]]:
    """MAX_FRAMES at most: half of them the innermost, the others those of no library."""
    if len(innermost_first) <= MAX_FRAMES:
        return innermost_first
    inner, rest = innermost_first[: MAX_FRAMES // 2], innermost_first[MAX_FRAMES // 2 :]
    own = [f for f in rest if is_program(f[0])]
    return inner + own[: MAX_FRAMES // 2]
