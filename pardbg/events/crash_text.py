"""The text in which CPython's faulthandler (``_Py_DumpTracebackThreads``) tells where a process was
that C code ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pardbg.words import whole
from pardbg_agent.ctrl.agent_messages import Frame

CRASHED: Final = "Fatal Python error: "
"""Begin of the text's first line."""
_FRAME: Final = '  File "'
_CURRENT: Final = "Current thread "


def crashed_at(lines: Iterable[str]) -> tuple[list[Frame], bool]:
    """Return (frames, outermost first; whether they are of the thread that crashed). Of a thread
    without Python code (autograd's, NCCL's) nothing is known: the main thread's, the last ones
    there, are told instead."""
    stacks: list[tuple[bool, list[Frame]]] = []
    for line in lines:
        if line.endswith(" call first):"):
            stacks.append((line.startswith(_CURRENT), []))
        elif stacks and (frame := _frame(line)) is not None:
            stacks[-1][1].append(frame)
    known = [(current, frames) for current, frames in stacks if frames]
    current, found = next((one for one in known if one[0]), known[-1] if known else (False, []))
    return found[::-1], current


def _frame(line: str) -> Frame | None:
    """Return (file, line, function) of ``  File "F", line 5 in f``."""
    if not line.startswith(_FRAME):
        return None
    file, _, rest = line[len(_FRAME) :].rpartition('", line ')
    number, _, function = rest.partition(" in ")
    return (file, whole(number) or 0, function) if file else None
