"""Where in the program an asynchronous op was issued: its wait is elsewhere, and says nothing of
it. In C++: native/places.hpp."""

from __future__ import annotations

import functools
import sys
from collections import deque
from types import CodeType
from typing import Final

LAST: Final = 256
"""Asynchronous ops whose place is kept."""
_DEEPEST: Final = 48
_LIBRARIES: Final = ("-packages/", "/lib/python3", "/torch/", "/pardbg_agent/")

Place = tuple[str, int, str]
"""(file, line, function)"""


class CallSites:
    """Of one Core: the last ones."""

    def __init__(self) -> None:
        self._last: deque[tuple[int, Place]] = deque(maxlen=LAST)

    def note(self, t0: int) -> None:
        """An op was issued at ``t0``, by who calls this."""
        frame, depth = sys._getframe(1), 0
        while not _is_programs(frame.f_code):
            depth += 1
            if frame.f_back is None or depth > _DEEPEST:
                return
            frame = frame.f_back
        code = frame.f_code
        self._last.append((t0, (code.co_filename, frame.f_lineno or 0, code.co_name)))

    def find(self, t0: int) -> Place | None:
        """Return where the op was issued at ``t0``; None: it is not known (any more)."""
        return next((place for when, place in self._last.copy() if when == t0), None)


@functools.lru_cache(4096)
def _is_programs(code: CodeType) -> bool:
    file = code.co_filename
    return not file.startswith("<") and not any(part in file for part in _LIBRARIES)
