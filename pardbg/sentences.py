"""Sentences of a text file, with places for facts.

A file has sections, each with ``key: text`` lines that are indented by two; a text goes on in lines
indented by more. Places: ``{since}``, ``{since:duration}``, ``{number+record}`` (``3 records``),
``{ranks}`` (``ranks 0–3``) and ``{ranks~has}`` (``have``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from importlib import resources
from typing import Any, Final

from pardbg import words

_PLACE: Final = re.compile(r"\{(\w+)(?:([:+~])([^}]+))?\}")
_FORMATS: Final[Mapping[str, Callable[[Any], str]]] = {
    "viewer": words.viewer, "duration": words.duration, "countdown": words.countdown,
    "size": words.size,
    "binary": words.binary_size, "count": words.count, "first": lambda ranks: str(ranks[0]),
    "percent": lambda share: words.percent(share, 0), "list": lambda of: ", ".join(map(str, of)),
}  # fmt: skip


@cache
def sections(package: str, name: str) -> Mapping[str, Mapping[str, str]]:
    """Return section -> key -> text of a package's file."""
    found: dict[str, dict[str, str]] = {}
    section, key = "", ""
    for line in resources.files(package).joinpath(name).read_text("utf-8").splitlines():
        if not line.startswith(" "):
            section = line
            found[section] = {}
        elif line.startswith("   "):
            found[section][key] += f" {line.strip()}"
        else:
            key, _, text = line.strip().partition(": ")
            found[section][key] = text
    return found


def filled(sentence: str, *facts: object) -> str:
    """Return a sentence with each place filled from the first of ``facts`` that has it."""

    def part(place: re.Match[str]) -> str:
        name, mark, how = place.groups()
        value = next(getattr(of, name) for of in facts if hasattr(of, name))
        if mark == "~":
            return words.agreed(how, value)
        if mark == "+":
            return words.plural(value, how)
        if how:
            return _FORMATS[how](value)
        if isinstance(value, tuple):
            return words.ranks_text(value)
        return str(value.value if isinstance(value, Enum) else value)

    return _PLACE.sub(part, sentence)
