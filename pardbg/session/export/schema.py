"""Which tables an export has, and what their columns say. docs/export.md is checked against it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Final, Literal, cast

from pardbg_agent.wire import Flag

Type = Literal["int", "float", "bool", "text"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: where it comes from, and what it says."""

    name: str
    type: Type
    source: str
    """A record field (``t0_ns``, ``a`` …), ``name``, ``op.dtype``, ``group.axis``, ``flag.16``,
    ``done`` or ``process.rank``."""
    doc: str
    absent: int | None = None
    """The record's value for *not known*; such a cell is null (empty in CSV)."""


Columns = tuple[Column, ...]


def _column(row: str) -> Column:
    """Return the column of a line ``name | type | source | doc | absent``, the last optional."""
    name, type_, source, doc, *absent = (cell.strip() for cell in row.split("|"))
    if source.startswith("flag."):
        source = f"flag.{int(Flag[source.removeprefix('flag.')])}"
    return Column(name, cast(Type, type_), source, doc, *map(int, absent))


def _parse() -> dict[str, Columns]:
    """Return the sections of ``schema.txt``: ``record KIND`` (``*``: a kind without one of its
    own), ``table NAME`` of what is not records, and ``part NAME``, which ``@NAME`` stands for."""
    found: dict[str, Columns] = {}
    text = resources.files("pardbg.session.export").joinpath("schema.txt").read_text("utf-8")
    for row in text.splitlines():
        if not row.startswith(" "):
            section = row
            found[section] = ()
        elif (name := row.strip()).startswith("@"):
            found[section] += found[f"part {name[1:]}"]
        else:
            found[section] += (_column(row),)
    return found


def _named(what: str) -> dict[str, Columns]:
    return {n.removeprefix(what): c for n, c in _parse().items() if n.startswith(what)}


RECORDS: Final = _named("record ")
"""Record kind -> its columns, in order."""
OTHER_RECORD: Final = RECORDS.pop("*")
"""Columns of a record kind that has none of its own above."""
OTHERS: Final = _named("table ")
"""Tables of what is not records -> their columns, in order."""
