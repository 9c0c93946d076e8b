"""A schedule in torch's CSV grammar: a row a rank, a cell an action.

``0F0,0F1,,0B0``: stage 0 runs forward of microbatch 0 and 1, idles a slot, runs backward. ``I`` and
``W`` are a backward split into input and weight gradients; ``(0F3;1B2)OVERLAP_F_B`` is a pair that
runs as one; ``1SEND_F0``, ``2RECV_F0`` and their ``_B`` are communication (torch adds it itself to
a table that has none). Source: torch/distributed/pipelining/schedules.py, ``_Action``.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from pardbg.analysis.pipeline.dependencies import COMPUTE, Action
from pardbg.errors import UserError

MAX_RANKS: Final = 512
MAX_CELLS: Final = 1 << 20
MESSAGES: Final = ("SEND_F", "RECV_F", "SEND_B", "RECV_B")
_ACTION: Final = re.compile(r"([0-9]{1,6})(SEND_F|RECV_F|SEND_B|RECV_B|F|B|I|W)([0-9]{1,6})")
_OTHER: Final = re.compile(r"([0-9]{1,6})(UNSHARD|RESHARD|REDUCE_GRAD)([0-9]{0,6})")
_PAIR: Final = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")


class Op(Action):
    """An action: a stage's compute on a microbatch, or a message of a microbatch."""

    __slots__ = ()

    @property
    def is_compute(self) -> bool:
        return self.kind in COMPUTE

    @property
    def is_message(self) -> bool:
        return self.kind in MESSAGES


class Cell(NamedTuple):
    """Ops that a rank runs at a time: a single one, or the two of an overlapped pair."""

    ops: tuple[Op, ...]
    column: int
    """Index of the cell in the file, from 0; -1: not from a file."""

    @property
    def text(self) -> str:
        """Text of the cell in torch's form."""
        if len(self.ops) == 1:
            return self.ops[0].text
        return f"({';'.join(op.text for op in self.ops)})OVERLAP_F_B"


@dataclass(frozen=True)
class Table:
    """A schedule as written."""

    rows: tuple[tuple[Cell, ...], ...]
    """Rows, one per rank, without idle slots."""

    @cached_property
    def has_messages(self) -> bool:
        """Return whether sends and receives are written out (torch's ``compute_comms``)."""
        return any(op.is_message for _, _, op in self.ops())

    @cached_property
    def num_stages(self) -> int:
        return 1 + max((op.stage for _, _, op in self.ops()), default=-1)

    @cached_property
    def num_microbatches(self) -> int:
        return 1 + max((op.microbatch for _, _, op in self.ops()), default=-1)

    def ops(self) -> Iterator[tuple[int, Cell, Op]]:
        """Yield (rank, cell, op) in the order of the file."""
        for rank, row in enumerate(self.rows):
            for cell in row:
                for op in cell.ops:
                    yield rank, cell, op

    @property
    def num_messages(self) -> int:
        """Number of messages of all ranks in a step: the table's own, or those torch adds."""
        if self.has_messages:
            return sum(op.kind.startswith("SEND") for _, _, op in self.ops())
        owner, count = self.owners, 0
        for rank, _, (stage, kind, _) in self.ops():
            if kind in ("F", "B", "I"):
                count += owner.get(stage + (1 if kind == "F" else -1), rank) != rank
        return count

    @cached_property
    def owners(self) -> Mapping[int, int]:
        """stage -> rank of the stage's first compute action."""
        found: dict[int, int] = {}
        for rank, _, op in self.ops():
            if op.is_compute:
                found.setdefault(op.stage, rank)
        return found

    def plan(self) -> dict[int, tuple[str, ...]]:
        """Return rank -> compute entries, in the form of what-if's plans."""
        return {
            rank: tuple(cell.text for cell in row if any(op.is_compute for op in cell.ops))
            for rank, row in enumerate(self.rows)
        }


def parse(text: str) -> Table:
    """Read a CSV. Raises UserError with row and column, counted from 1."""
    rows: list[tuple[Cell, ...]] = []
    cells = 0
    for number, line in enumerate(_lines(text)):
        if number >= MAX_RANKS:
            raise UserError(f"more than {MAX_RANKS} rows: a row is a rank")
        row = []
        for column, word in enumerate(line):
            if word.strip():
                row.append(Cell(_ops(word.strip(), number, column), column))
        cells += len(line)
        if cells > MAX_CELLS:
            raise UserError(f"more than {MAX_CELLS} cells")
        rows.append(tuple(row))
    while rows and not rows[-1]:
        rows.pop()
    if not rows:
        raise UserError("no action in it: a row is a rank, a cell an action such as 0F0 or 1B3")
    return Table(tuple(rows))


def _lines(text: str) -> Iterator[list[str]]:
    """Return the cells of each line."""
    reader = csv.reader(io.StringIO(text))
    try:
        yield from reader
    except csv.Error as error:  # a cell of more than 128 kB; a NUL
        raise UserError(f"line {reader.line_num} is no CSV: {error}") from None


def from_plan(plan: Mapping[int, Sequence[str]]) -> Table:
    """Return a table of a plan's entries."""
    return Table(
        tuple(
            tuple(Cell(_ops(text, rank, column), column) for column, text in enumerate(plan[rank]))
            for rank in sorted(plan)
        )
    )


def dump(table: Table) -> str:
    """Return the table as CSV for torch's ``_load_csv``."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in table.rows:
        writer.writerow([cell.text for cell in row])
    return out.getvalue()


def _ops(word: str, row: int, column: int) -> tuple[Op, ...]:
    pair = _PAIR.fullmatch(word)
    words = pair.groups() if pair is not None else (word,)
    ops = tuple(_op(part.strip(), row, column) for part in words)
    if pair is not None and not all(op.is_compute for op in ops):
        raise UserError(
            f"row {row + 1}, column {column + 1}: {word[:40]!r} overlaps more than compute; "
            "pair a forward with a backward as in (0F3;1B2)OVERLAP_F_B"
        )
    return ops


def _op(word: str, row: int, column: int) -> Op:
    found = _ACTION.fullmatch(word) or _OTHER.fullmatch(word)
    if found is None:
        raise UserError(
            f"row {row + 1}, column {column + 1}: {word[:40]!r} is no action; "
            "write STAGE KIND MICROBATCH as in 0F0, 1B3, 2I1, 2W1"
        )
    stage, kind, microbatch = found.groups()
    return Op(int(stage), kind, int(microbatch) if microbatch else -1)
