"""Frames of the agent between the program's: hidden from its tracebacks and stack levels.

Loaded with the interpreter, so it imports nothing that the program may have of its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

F = TypeVar("F", bound=Any)
OWN: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_UNCOUNTED: Final = " (importlib._bootstrap)"


def uncounted(function: F) -> F:
    """Hide a function's frame from ``stacklevel`` of warnings and (from Python 3.11) of logging:
    the program's place stays its own. Both skip frames of the import system, which they know by
    these words in the file name."""
    code = getattr(function, "__code__", None)
    if code is not None and is_own(code.co_filename) and not code.co_filename.endswith(_UNCOUNTED):
        function.__code__ = code.replace(co_filename=code.co_filename + _UNCOUNTED)
    return function


def is_own(file: str) -> bool:
    """Return whether a file is the agent's: its frames are not the program's."""
    return file.startswith(OWN)


def hide_own(error: BaseException) -> None:
    """Remove the agent's frames from an exception that passes one of its wrappers, before a bare
    ``raise``: the program's traceback is its own. (Python 3.10 puts the wrapper's frame back.)"""
    trace = _next_of_program(error.__traceback__)
    error.__traceback__ = trace
    while trace is not None:
        following = _next_of_program(trace.tb_next)
        if following is not trace.tb_next:
            trace.tb_next = following
        trace = following


def _next_of_program(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and is_own(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace
