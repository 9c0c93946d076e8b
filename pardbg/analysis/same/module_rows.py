"""Modules in the order of execution, and how far each is from the reference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pardbg.analysis.same.comparison import Sameness

WHATS: Final = ("out", "d_out", "grad")


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """A module, and how far it is from the reference."""

    name: str
    floors: Mapping[str, float]
    """Noise floors by kind of tensor; those that were not judged are not there."""
    part: str = ""
    """The kind of tensor of which ranks have a term of a sum that nobody summed."""
    first: bool = False
    """It is the one to look at."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The answer of ``pardbg same``, by module."""

    found: Sameness
    modules: tuple[ModuleRow, ...]


def numbers_of(found: Sameness) -> Numbers:
    """Return an answer by module."""
    return Numbers(found, tuple(module_rows(found)))


def module_rows(found: Sameness) -> list[ModuleRow]:
    """Return the modules of the first captured step in the order of execution; those with judged
    parameters only, where outputs are not known."""
    floors: dict[str, dict[str, float]] = defaultdict(dict)
    first = found.rows[0].step if found.rows else 0
    for row in found.rows:
        if row.step == first and row.what in WHATS:
            name = row.name.rpartition(".")[0] if row.what == "grad" else row.name
            of = floors[name]
            of[row.what] = max(of.get(row.what, 0.0), row.floors)
    outs = [row.name for row in found.rows if row.what == "out" and row.step == first]
    names = outs or list(floors)[::-1]  # gradients are told from the last parameter on
    cause = found.hypothesis.cause if found.hypothesis is not None else ""
    owner = found.name.rpartition(".")[0] if found.what in ("grad", "param") else found.name
    part = found.what if cause == "sum" and found.what not in ("grad", "param") else ""
    return [
        ModuleRow(
            name, floors[name], part if name == owner else "", name == owner and bool(found.what)
        )
        for name in names
    ]  # fmt: skip
