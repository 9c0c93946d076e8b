"""Call sites of asynchronous ops in the program: the place of an op's wait does not tell where it
was issued. The C++ counterpart is native/places.hpp."""

from __future__ import annotations

import sys
from collections import deque
from types import CodeType, FrameType
from typing import Final

from pardbg_agent.tables.code_files import is_program

LAST: Final = 256
"""Number of asynchronous ops whose call site is kept."""
_DEEPEST: Final = 48
_MOST: Final = 4096
"""Maximum number of classified code objects; later ones count as library code."""

Place = tuple[str, int, str]
"""Call site: (file, line, function)."""

_known: Final[dict[int, bool]] = {}
"""id of a code object -> whether it is the program's own. Hashing code itself takes 1 us."""

_kept: Final[list[CodeType]] = []
"""Classified code objects, kept alive so that their ids stay valid."""


class CallSites:
    """Call sites of the newest asynchronous ops of one Core."""

    def __init__(self) -> None:
        self._last: deque[tuple[int, CodeType, int]] = deque(maxlen=LAST)

    def note(self, t0: int) -> None:
        """Note the call site of an op issued at ``t0`` by the caller's caller. A device's autograd
        thread, from which DDP issues ops, has no call site."""
        frame = _programs(sys._getframe(1).f_back)
        if frame is not None:
            self._last.append((t0, frame.f_code, frame.f_lasti))

    def find(self, t0: int) -> Place | None:
        """Return the call site of the op issued at ``t0``; None if it is not known (any more)."""
        for when, code, at in self._last.copy():
            if when == t0:
                lines = (line for first, end, line in code.co_lines() if first <= at < end)
                return code.co_filename, next(lines, 0) or 0, code.co_name
        return None


def here() -> Place | None:
    """Return the current place in the program; None without a program frame (autograd threads)."""
    frame = _programs(sys._getframe(1))
    return (
        None if frame is None else (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
    )


def _programs(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the program's own code, from ``frame`` outwards."""
    known = _known
    for _ in range(_DEEPEST):
        if frame is None:
            return None
        code = frame.f_code
        users = known.get(id(code))
        if users or (users is None and _is_programs(code)):
            return frame
        frame = frame.f_back
    return None


def _is_programs(code: CodeType) -> bool:
    if len(_kept) >= _MOST:
        return False
    users = is_program(code.co_filename)
    _kept.append(code)
    _known[id(code)] = users
    return users
