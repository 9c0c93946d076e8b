"""Errors that a user can correct, in one line: raised where found, printed by the command."""

from __future__ import annotations

from typing import Final


class UserError(Exception):
    """An error in one line, with advice; the command line ends with the error's exit code."""

    exit_code: int = 2


NONSENSE: Final = (ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""Exceptions caused by external fields of a wrong type or size."""
