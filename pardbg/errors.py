"""What a user can correct, in one line: raised wherever it is found, told where it is asked for."""

from __future__ import annotations

from typing import Final


class UserError(Exception):
    """Says in one line what is wrong and what to do; the command line ends with its exit code."""

    exit_code: int = 2


NONSENSE: Final = (ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""Errors that fields of a wrong type or size, from outside, lead to."""
