"""Requirements of a schedule's CSV on the ranks and the batch. Imports no torch."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pardbg.lab.recipes.catalogue.recipe import ANY_RANKS, Kind, Option, Recipe, RecipeError
from pardbg.lab.recipes.shape import BATCH, BLOCKS

_ACTION = re.compile(r"(\d{1,6})[FBIW](\d{1,6})")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a schedule, one per rank."""

    rows: tuple[tuple[str, ...], ...]

    def stages(self, rank: int) -> list[int]:
        """Return the stages of a rank's actions."""
        return sorted({int(s) for text in self.rows[rank] for s, _ in _ACTION.findall(text)})

    @property
    def num_stages(self) -> int:
        return sum(len(self.stages(rank)) for rank in range(len(self.rows)))

    @property
    def num_microbatches(self) -> int:
        found = (int(mb) for row in self.rows for text in row for _, mb in _ACTION.findall(text))
        return 1 + max(found, default=-1)


def read(path: str) -> Table:
    """Return a file's table; RecipeError if the file cannot be read."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = tuple(tuple(cell.strip() for cell in row) for row in csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecipeError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from None
    return Table(tuple(row for row in rows if row))


def zb_h1(num_ranks: int, count: int = 8) -> Table:
    """Return ZB-H1: 1F1B with split backwards, and each rank's W delayed by the rank's number."""
    rows = []
    for rank in range(num_ranks):
        ahead = num_ranks - rank
        row = [f"{rank}F{mb}" for mb in range(ahead)]
        for mb in range(count):
            row.append(f"{rank}I{mb}")
            row += [f"{rank}W{mb - rank}"] if mb >= rank else []
            row += [f"{rank}F{ahead + mb}"] if ahead + mb < count else []
        rows.append((*row, *(f"{rank}W{mb}" for mb in range(count - rank, count))))
    return Table(tuple(rows))


def _able(nproc: int, own: Mapping[str, Any]) -> str | None:
    if not own["file"]:
        return None if 2 <= nproc <= BLOCKS else f"csv takes 2 to {BLOCKS} ranks without --file"
    try:
        table = read(own["file"])
    except RecipeError as why:
        return str(why)
    count = table.num_microbatches
    if len(table.rows) != nproc:
        return f"{own['file']} has {len(table.rows)} rows: take --nproc {len(table.rows)}"
    if not 2 <= table.num_stages <= BLOCKS:
        return f"{own['file']} has {table.num_stages} stages; the model has {BLOCKS} blocks"
    if count < 1 or BATCH % count:
        return f"{own['file']} has {count} microbatches, which do not divide {BATCH} sequences"
    return None


RECIPE = Recipe(
    name="csv",
    kind=Kind.PIPELINE,
    summary="any schedule from a CSV file; without one ZB-H1, which torch does not have",
    file="csv_table",
    fits=ANY_RANKS,
    able=_able,
    options=(
        Option("file", "", "the schedule, in torch's grammar", type=str),
        Option("predicted", "", "what was predicted, to be shown beside what is seen", type=str),
    ),
    screen="pipeline",
)
