"""Where the threads of this process are. Reads frames only: no locals, no evaluation."""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType
from typing import Any, Final

MAX_THREADS: Final = 64
MAX_FRAMES: Final = 64
_OWN: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep
_GATE: Final = _OWN + "gate.py"


def stacks(skip_thread: int | None = None) -> list[dict[str, Any]]:
    """[{"thread", "main", "frames": [[file, line, function], ...]}], outermost frame first, the
    main thread first. The agent's own frames and ``skip_thread`` (an ident) are left out."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    found = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)
    out = []
    for ident, frame in found[:MAX_THREADS]:
        if ident != skip_thread:
            out.append(
                {
                    "thread": names.get(ident, f"thread {ident}"),
                    "main": ident == main,
                    "frames": frames_of(frame),
                }
            )
    return out


def frames_of(frame: FrameType | None) -> list[list[Any]]:
    """[file, line, function] of a stack, outermost first; the innermost MAX_FRAMES. Without what
    a gate runs in to wait: a held rank is where it met the gate."""
    out: list[list[Any]] = []
    while frame is not None and len(out) < MAX_FRAMES:
        code = frame.f_code
        if code.co_filename == _GATE:
            out.clear()
        if not code.co_filename.startswith(_OWN):
            out.append([code.co_filename, frame.f_lineno or 0, code.co_name])
        frame = frame.f_back
    return out[::-1]
