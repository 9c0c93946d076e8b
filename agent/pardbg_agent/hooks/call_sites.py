"""Where in the program an asynchronous op was issued: its wait is elsewhere, and says nothing of
it. In C++: native/places.hpp."""

from __future__ import annotations

import sys
from collections import deque
from types import CodeType, FrameType
from typing import Final

from pardbg_agent.tables.code_files import is_program

LAST: Final = 256
"""Asynchronous ops whose place is kept."""
_DEEPEST: Final = 48
_MOST: Final = 4096
"""Pieces of code that are known; later ones count as a library's."""

Place = tuple[str, int, str]
"""(file, line, function)"""

_known: Final[dict[int, bool]] = {}
"""id of code -> whether it is the program's own. By id: to hash code takes a microsecond."""

_kept: Final[list[CodeType]] = []
"""The code that is known, so that its id means it."""


class CallSites:
    """Places of the newest asynchronous ops of one Core."""

    def __init__(self) -> None:
        self._last: deque[tuple[int, CodeType, int]] = deque(maxlen=LAST)

    def note(self, t0: int) -> None:
        """Note the place of an op issued at ``t0``, by the caller of the caller of this. A device's
        thread of autograd, from which DDP issues, has none."""
        frame = _programs(sys._getframe(1).f_back)
        if frame is not None:
            self._last.append((t0, frame.f_code, frame.f_lasti))

    def find(self, t0: int) -> Place | None:
        """Return where the op was issued at ``t0``; None: it is not known (any more)."""
        for when, code, at in self._last.copy():
            if when == t0:
                lines = (line for first, end, line in code.co_lines() if first <= at < end)
                return code.co_filename, next(lines, 0) or 0, code.co_name
        return None


def here() -> Place | None:
    """Return where in the program this is; None: nowhere near, as in a thread of autograd."""
    frame = _programs(sys._getframe(1))
    return (
        None if frame is None else (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
    )


def _programs(frame: FrameType | None) -> FrameType | None:
    """Return the innermost of the program's own frames from this one on."""
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
