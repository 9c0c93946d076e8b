"""Words of kinds of findings, from ``kinds/kinds.txt``: what a kind means, what must have been
seen, the sentence, what to try, the screen with the evidence.

A section of the file is a class of facts, or a kind (or several, separated by spaces) where that
says more. ``try CASE`` is for one value of a fact.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from pardbg.sentences import sections

wording: Final = partial(sections, "pardbg.analysis.findings.kinds", "kinds.txt")
"""Return section -> key -> text."""


def word(of: type, key: str) -> str:
    """Return a text of a class of facts, or of its nearest base that has it; else empty."""
    found = (wording().get(base.__name__, {}) for base in of.__mro__)
    return next((section[key] for section in found if key in section), "")
