"""Texts of kinds of findings, from ``kinds/kinds.txt``: meaning, required data, sentence, advice,
screen with the evidence.

A section of the file is a class of facts, or kinds (separated by spaces) with texts of their own.
``try CASE`` is for one value of a fact; `` // `` stands between the steps of an advice. Exit codes
in words are here, too.
"""

from __future__ import annotations

import signal
from functools import partial
from typing import Final

from pardbg.sentences import sections

wording: Final = partial(sections, "pardbg.analysis.findings.kinds", "kinds.txt")
"""Return section -> key -> text."""


def word(of: type, key: str) -> str:
    """Return a text of a class of facts, or of its nearest base class that has it; else empty."""
    found = (wording().get(base.__name__, {}) for base in of.__mro__)
    return next((section[key] for section in found if key in section), "")


def killed_text(code: int | None) -> str:
    """Return how a process with this exit code was killed, such as ``was killed by SIGKILL``."""
    if code is None or code >= 0:
        return "was killed, or left by os._exit"
    return f"was killed by {signal_name(code)}"


def signal_name(code: int) -> str:
    """Return the signal's name for a negative exit code."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
