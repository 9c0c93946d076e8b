"""Tables to files: one per table in a folder, as Parquet or CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pardbg.plain_text import plain_cell
from pardbg.session.export.tables import Sheet, Values


class MissingLibrary(Exception):
    """A format needs a library that is not installed. One line."""


def write_csv(sheets: Iterable[Sheet], folder: Path) -> dict[str, int]:
    """``<table>.csv`` each, a header line first; an unknown cell is empty. Rows per table."""
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
    """True and False as 1 and 0, which every reader takes for numbers; texts without formulas."""
    cells = values.cells()
    if values.column.type == "text":
        return [plain_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    return [int(cell) for cell in cells] if values.column.type == "bool" else cells


def write_parquet(sheets: Iterable[Sheet], folder: Path) -> dict[str, int]:
    """``<table>.parquet`` each, zstd. Raises MissingLibrary before anything is written."""
    if find_spec("pyarrow") is None:
        raise MissingLibrary("parquet needs pyarrow: pip install 'pardbg[export]'")
    import pyarrow as pa
    from pyarrow import parquet

    written = {}
    for sheet in sheets:
        arrays = [_arrow(values, pa) for values in sheet.columns]
        names = [values.column.name for values in sheet.columns]
        table = pa.table(arrays, names=names)
        parquet.write_table(table, folder / f"{sheet.name}.parquet", compression="zstd")
        written[sheet.name] = sheet.num_rows
    return written


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
