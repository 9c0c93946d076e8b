"""A store as tables: one per record kind, names resolved, times on the hub's clock; written into a
folder, as Parquet (a dataset each) or CSV (a file each).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np

from pardbg.analysis.comm.ops import UNKNOWN_OP, source_of
from pardbg.errors import UserError
from pardbg.plain_text import plain_cell
from pardbg.session.export.gathered import Array, Gathered
from pardbg.store.history import History
from pardbg.store.intake import TABLE_NAMES
from pardbg.store.process import Process
from pardbg.store.store import Store
from pardbg_agent.wire import Flag

Type = Literal["int", "float", "bool", "text"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an exported table: its source, and its description."""

    name: str
    type: Type
    source: str
    """A record field (``t0_ns``, ``a`` …), ``name``, ``op.dtype``, ``group.axis``, ``flag.16``,
    ``done`` or ``process.rank``."""
    doc: str
    absent: int | None = None
    """Record's value for *not known*, exported as null (empty in CSV); None: there is none."""


Columns = tuple[Column, ...]


def _column(row: str) -> Column:
    """Return the column of a line ``name | type | source | doc | absent``, the last optional."""
    name, type_, source, doc, *absent = (cell.strip() for cell in row.split("|"))
    if source.startswith("flag."):
        source = f"flag.{int(Flag[source.removeprefix('flag.')])}"
    return Column(name, cast(Type, type_), source, doc, *map(int, absent))


def _parse() -> dict[str, Columns]:
    """Return the sections of ``schema.txt``: ``record KIND`` (``*``: all other kinds), ``table
    NAME`` of other data than records, and ``part NAME``, which ``@NAME`` stands for."""
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
"""Columns of record kinds without an entry in RECORDS."""
OTHERS: Final = _named("table ")
"""Tables of data other than records -> their columns, in order."""


SPLIT: Final = {"op_issue": ("issue", "issue_p2p"), "op_done": ("done", "done_p2p")}
"""Record kinds that the store keeps in two tables -> these tables."""


@dataclass(frozen=True, slots=True)
class Values:
    """Values of one column. Text is ``texts[data]``."""

    column: Column
    data: Array
    valid: Array | None = None
    """Mask of known cells; None: all are known."""
    texts: tuple[str, ...] = ()

    def cells(self) -> list[Any]:
        """Return the cells as Python values, None for unknown ones."""
        if self.column.type == "text":
            found: list[Any] = np.array([*self.texts, ""], dtype=object)[self.data].tolist()
        else:
            found = self.data.tolist()
        if self.valid is None:
            return found
        return [v if ok else None for v, ok in zip(found, self.valid.tolist(), strict=True)]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table with its columns and values."""

    name: str
    columns: tuple[Values, ...]

    @property
    def num_rows(self) -> int:
        return len(self.columns[0].data)


def kinds() -> list[str]:
    """Return the record kinds that an export has a table for, in order."""
    split = {part for parts in SPLIT.values() for part in parts}
    return [*RECORDS, *(name for name in TABLE_NAMES if name not in RECORDS and name not in split)]


def sheets(store: Store) -> Iterable[Sheet]:
    """Yield every table that has rows, one after the other."""
    store.settle()
    for kind in kinds():
        sheet = records(store, kind)
        if sheet.num_rows:
            yield sheet
    for name, rows in _ROWS.items():
        sheet = _from_rows(name, rows(store))
        if sheet.num_rows:
            yield sheet


def records(store: Store, kind: str, rank: int | None = None) -> Sheet:
    """Return the table of one of ``kinds``, optionally of one rank only."""
    store.settle()
    columns = RECORDS.get(kind, OTHER_RECORD)
    names = SPLIT.get(kind, (kind,))
    chosen = (one for one in store.of_part() if rank is None or one.rank == rank)
    tables = ((process, process.table(name)) for process in chosen for name in names)
    rows = Gathered([(process, table) for process, table in tables if len(table)])
    return Sheet(kind, tuple(_values(column, rows) for column in columns))


def _values(column: Column, rows: Gathered) -> Values:
    if column.type == "text":
        return _texts(column, rows)
    found = _numbers(column, rows)
    absent = -1 if column.source == "process.rank" else column.absent
    return Values(column, found, None if absent is None else found != absent)


def _numbers(column: Column, rows: Gathered) -> Array:
    source, _, field = column.source.partition(".")
    if source == "flag":
        return np.asarray((rows.col("flags") & int(field)) != 0)
    if source == "process":
        values = (getattr(process, field) for process in rows.processes)
        return rows.each([-1 if value is None else value for value in values])
    if source == "number":  # ``a`` holds a float64's bits where Flag.FLOAT says so
        whole = rows.col("a")
        is_float = (rows.col("flags") & 1) != 0
        return np.where(is_float, whole.view("<f8"), whole.astype(np.float64))
    if source == "op":
        return rows.by_id("name_id", lambda process, i: process.ops.get(i, UNKNOWN_OP).tag)
    return np.asarray(rows.col(source), dtype=np.int64)


def _texts(column: Column, rows: Gathered) -> Values:
    known: dict[str, int] = {}

    def code(text: str) -> int:
        return known.setdefault(text, len(known))

    source, _, field = column.source.partition(".")
    if source == "process":
        data = rows.each([code(str(getattr(process, field))) for process in rows.processes])
    else:
        ids = {"group": "group_id", "done": "flags"}.get(source, "name_id")
        data = rows.by_id(ids, lambda process, i: code(_text(process, source, field, i)))
    return Values(column, data, None, tuple(known))


def _text(process: Process, source: str, field: str, number: int) -> str:
    if source == "done":
        return source_of(number)
    if source == "op":
        return str(getattr(process.ops.get(number, UNKNOWN_OP), field))
    if source == "group":
        group = process.groups.get(number)
        if group is None:
            return "" if number == 0xFFFF else f"#{number}"
        return group.key if field == "key" else group.axis or group.name
    return process.name(number)


# ------------------------------------------------------------------ what is not records


def _from_rows(name: str, rows: Sequence[Sequence[Any]]) -> Sheet:
    made = []
    for at, column in enumerate(OTHERS[name]):
        cells = [row[at] for row in rows]
        valid = np.array([cell is not None for cell in cells], dtype=np.bool_)
        if column.type == "text":
            codes = {text: i for i, text in enumerate(dict.fromkeys(map(str, cells)))}
            data: Array = np.array([codes[str(cell)] for cell in cells], dtype=np.int64)
            made.append(Values(column, data, None, tuple(codes)))
        else:
            data = np.array([0 if cell is None else cell for cell in cells], dtype=np.int64)
            made.append(Values(column, data, None if valid.all() else valid))
    return Sheet(name, tuple(made))


def _all(history: History) -> Iterable[tuple[int, Any]]:
    return (history.at(i) for i in range(len(history)))


def _as_json(fields: Mapping[str, Any]) -> str:
    try:
        return json.dumps(fields, default=str, sort_keys=True)
    except TypeError:  # keys that JSON does not have, or several types of them
        return json.dumps(str(fields))


_ROWS: Final[dict[str, Callable[[Store], list[tuple[Any, ...]]]]] = {
    "process": lambda store: [
        (p.epoch, p.rank, p.host, p.pid, p.proc, p.num_records, p.lost(None), p.offset_ns,
         p.clock_error_ns)
        for p in store.of_part()
    ],
    "group": lambda store: [
        (g.epoch, g.key, g.name, g.axis or "", g.backend, ",".join(map(str, g.ranks)))
        for g in store.groups.values()
    ],
    "output": lambda store: [(t, *line) for t, line in _all(store.output)],
    "control": lambda store: [
        (t, event.fact.TAG if event.fact is not None else "", _as_json(event.plain()))
        for t, event in _all(store.controls)
    ],
}  # fmt: skip
"""Rows of each table in OTHERS."""


def write_csv(sheets: Iterable[Sheet], folder: Path) -> dict[str, int]:
    """Write ``<table>.csv`` each, a header line first; unknown is empty. Return rows by table."""
    written = {}
    for sheet in sheets:
        with open(folder / f"{sheet.name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(values.column.name for values in sheet.columns)
            columns = [_csv_cells(values) for values in sheet.columns]
            writer.writerows(zip(*columns, strict=True))
        written[sheet.name] = sheet.num_rows
    return written


def _csv_cells(values: Values) -> list[Any]:
    """Return CSV cells: booleans as 1 and 0, which every reader takes; texts without formulas."""
    if values.column.type == "text":
        return replace(values, texts=tuple(map(plain_cell, values.texts))).cells()
    cells = values.cells()
    return [int(cell) for cell in cells] if values.column.type == "bool" else cells


def write_parquet(sheets: Iterable[Sheet], folder: Path) -> dict[str, int]:
    """Write a dataset ``<table>/`` for each table, zstd: a file for each block of ranks (and each
    FILE_ROWS rows of it), sorted by time. Raises UserError before anything is written."""
    if find_spec("pyarrow") is None:
        raise UserError("parquet needs pyarrow: pip install 'pardbg[export]'")
    import pyarrow as pa
    from pyarrow import parquet

    written = {}
    for sheet in sheets:
        table = pa.table(
            [_arrow(values, pa) for values in sheet.columns],
            names=[values.column.name for values in sheet.columns],
        )
        (folder / sheet.name).mkdir()
        for name, rows in _blocks(sheet):
            path = folder / sheet.name / f"{name}.parquet"
            parquet.write_table(
                table.take(rows), path, compression="zstd", row_group_size=GROUP_ROWS
            )
        written[sheet.name] = sheet.num_rows
    return written


BLOCK_RANKS: Final = 64
FILE_ROWS: Final = 1 << 20
GROUP_ROWS: Final = 1 << 17
"""Maximum rows of a row group: readers skip groups by their minimum and maximum time."""


def _blocks(sheet: Sheet) -> Iterable[tuple[str, Array]]:
    """Yield (name, rows by time): ``ranks-0-63``, ``ranks-0-63.1`` …; ``all`` without ranks."""
    by_name = {values.column.name: values.data for values in sheet.columns}
    ranks = by_name.get("rank", np.zeros(sheet.num_rows, np.int64))
    times = next((by_name[name] for name in ("t1_ns", "t_ns", "t0_ns") if name in by_name), ranks)
    for block in np.unique(ranks // BLOCK_RANKS).tolist():
        rows = np.flatnonzero(ranks // BLOCK_RANKS == block)
        rows = rows[np.argsort(times[rows], kind="stable")]
        first = block * BLOCK_RANKS
        name = f"ranks-{first}-{first + BLOCK_RANKS - 1}" if block >= 0 else "no-rank"
        name = name if "rank" in by_name else "all"
        for part, begin in enumerate(range(0, len(rows), FILE_ROWS)):
            yield f"{name}.{part}" if part else name, rows[begin : begin + FILE_ROWS]


def _arrow(values: Values, pa: Any) -> Any:
    mask = None if values.valid is None else ~values.valid
    if values.column.type == "text":
        return pa.DictionaryArray.from_arrays(
            pa.array(values.data.astype("int32")), pa.array(values.texts, type=pa.string())
        )
    return pa.array(values.data, mask=mask)


TABLE_WRITERS: Final[dict[str, Callable[[Iterable[Sheet], Path], dict[str, int]]]] = {
    "parquet": write_parquet,
    "csv": write_csv,
}
