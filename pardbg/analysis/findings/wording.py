"""Words of kinds of findings, from ``kinds/kinds.txt``: what a kind means, what must have been
seen, the sentence, what to try, the screen with the evidence.

A section of the file is a class of facts, or a kind (or several, separated by spaces) where that
says more. ``try CASE`` is for one value of a fact. A sentence has places for facts: ``{since}``,
``{since:duration}``, ``{number+record}`` (``3 records``), ``{ranks}`` (``ranks 0–3``) and
``{ranks~has}`` (``have``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

from pardbg.words import agreed, binary_size, count, duration, percent, plural, ranks_text, size

_PLACE: Final = re.compile(r"\{(\w+)(?:([:+~])([^}]+))?\}")
_FORMATS: Final[Mapping[str, Callable[[Any], str]]] = {
    "duration": duration, "size": size, "binary": binary_size, "count": count,
    "percent": lambda share: percent(share, 0),
}  # fmt: skip


@cache
def wording() -> Mapping[str, Mapping[str, str]]:
    """Return section -> key -> text."""
    found: dict[str, dict[str, str]] = {}
    section, key = "", ""
    file = resources.files("pardbg.analysis.findings.kinds").joinpath("kinds.txt")
    for line in file.read_text("utf-8").splitlines():
        if not line.startswith(" "):
            section = line
            found[section] = {}
        elif line.startswith("   "):  # a text that goes on
            found[section][key] += f" {line.strip()}"
        else:
            key, _, text = line.strip().partition(": ")
            found[section][key] = text
    return found


def word(of: type, key: str) -> str:
    """Return a text of a class of facts, or of its nearest base that has it; else empty."""
    sections = (wording().get(base.__name__, {}) for base in of.__mro__)
    return next((section[key] for section in sections if key in section), "")


def filled(sentence: str, facts: object, about: object) -> str:
    """Return a sentence with its places filled from facts, else from their candidate."""

    def part(place: re.Match[str]) -> str:
        name, mark, how = place.groups()
        if name in ("ranks", "culprits"):
            of: tuple[int, ...] = getattr(about, name)
            return agreed(how, of) if mark == "~" else ranks_text(of)
        if name == "rank":
            return str(about.ranks[0])  # type: ignore[attr-defined]
        value = getattr(facts, name) if hasattr(facts, name) else getattr(about, name)
        if mark == "+":
            return plural(value, how)
        return _FORMATS[how](value) if how else str(value)

    return _PLACE.sub(part, sentence)
