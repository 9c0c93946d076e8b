"""Editor of a table: a cursor, the changes that are possible at it, and undo."""

from __future__ import annotations

from typing import NamedTuple

from pardbg.errors import UserError
from pardbg.lab.schedules.schedule_table import Cell, Op, Table, parse


class Draft(NamedTuple):
    """A table with the position of the cursor."""

    table: Table
    rank: int = 0
    at: int = 0
    """Index of the cell in the rank's row."""

    @property
    def row(self) -> tuple[Cell, ...]:
        return self.table.rows[self.rank]

    @property
    def cell(self) -> Cell | None:
        """Return the cell under the cursor; None in an empty row."""
        return self.row[self.at] if self.at < len(self.row) else None

    def needed(self) -> Cell:
        """Return the cell under the cursor. UserError if the row is empty."""
        if self.cell is None:
            raise UserError(f"rank {self.rank} has no action: i inserts one")
        return self.cell

    def with_row(self, row: tuple[Cell, ...], at: int, rank: int | None = None) -> Draft:
        """Return the draft with another row for a rank (the cursor's), and the cursor ``at``."""
        rank = self.rank if rank is None else rank
        cells = tuple(Cell(cell.ops, column) for column, cell in enumerate(row))
        rows = self.table.rows
        return Draft(Table((*rows[:rank], cells, *rows[rank + 1 :])), self.rank, max(0, at))

    def shifted(self, by: int) -> Draft:
        """Return the draft with the action and its neighbour exchanged."""
        self.needed()
        to = self.at + by
        if not 0 <= to < len(self.row):
            raise UserError("it is the row's " + ("first" if by < 0 else "last") + " already")
        row = list(self.row)
        row[self.at], row[to] = row[to], row[self.at]
        return self.with_row(tuple(row), to)

    def inserted(self, text: str, after: bool) -> Draft:
        """Return the draft with more actions (separated by blanks) before or after the cursor."""
        try:
            cells = parse(",".join(text.split())).rows[0]
        except UserError as why:
            raise UserError(str(why).partition(": ")[2] or str(why)) from None
        if not all(op.is_compute for cell in cells for op in cell.ops):
            raise UserError(f"{text}: compute alone is edited; sends and receives follow from it")
        at = self.at + (after and self.cell is not None)
        return self.with_row((*self.row[:at], *cells, *self.row[at:]), at + len(cells) - 1)

    def deleted(self) -> Draft:
        """Return the draft without the action."""
        self.needed()
        row = (*self.row[: self.at], *self.row[self.at + 1 :])
        return self.with_row(row, min(self.at, len(row) - 1))

    def split(self) -> Draft:
        """Return the draft with B split into I and W in a row; on I or W, both joined as B."""
        op = self.needed().ops[0]
        if len(self.needed().ops) == 1 and op.kind == "B":
            both = (Cell((op._replace(kind="I"),), 0), Cell((op._replace(kind="W"),), 0))
            return self.with_row((*self.row[: self.at], *both, *self.row[self.at + 1 :]), self.at)
        if len(self.needed().ops) > 1 or op.kind not in "IW":
            raise UserError(f"{self.needed().text} is no backward: s splits B, and joins I and W")
        row, at = _joined(self.row, op)
        return self.with_row(row, at)

    def split_all(self) -> Draft:
        """Return the draft with every B of the table split into I and W."""
        found = self
        for rank, row in enumerate(self.table.rows):
            cells: list[Cell] = []
            for cell in row:
                op = cell.ops[0]
                whole = len(cell.ops) == 1 and op.kind == "B"
                kinds = "IW" if whole else ()
                cells += [Cell((op._replace(kind=k),), 0) for k in kinds] or [cell]
            found = found.with_row(tuple(cells), 0, rank)
        if found.table == self.table:
            raise UserError("no B to split")
        text = self.cell.text.replace("B", "I") if self.cell is not None else ""
        texts = [cell.text for cell in found.row]
        return found._replace(at=texts.index(text) if text in texts else 0)

    def brought(self, mark: tuple[int, int]) -> Draft:
        """Return the draft with the marked action, of any row, moved before the cursor's."""
        rank, at = mark
        if (rank, at) == (self.rank, self.at):
            return self
        source = self.table.rows[rank]
        left = self.with_row((*source[:at], *source[at + 1 :]), self.at, rank)
        to = self.at - (rank == self.rank and at < self.at)
        return left.with_row((*left.row[:to], source[at], *left.row[to:]), to)

    def swapped(self, mark: tuple[int, int]) -> Draft:
        """Return the draft with the marked action and the cursor's exchanged."""
        rank, at = mark
        other, here = self.table.rows[rank][at], self.needed()
        found = self.with_row((*self.row[: self.at], other, *self.row[self.at + 1 :]), self.at)
        row = found.table.rows[rank]
        return found.with_row((*row[:at], here, *row[at + 1 :]), self.at, rank)


def _joined(row: tuple[Cell, ...], op: Op) -> tuple[tuple[Cell, ...], int]:
    """Return (the row with I and W of an op's microbatch joined as one B, the index of B)."""
    both = {op._replace(kind=kind) for kind in "IW"}
    halves = [at for at, cell in enumerate(row) if len(cell.ops) == 1 and cell.ops[0] in both]
    if len(halves) != 2:
        raise UserError(f"{op.text} has no other half in this row")
    whole = Cell((op._replace(kind="B"),), 0)
    return (*row[: halves[0]], whole, *row[halves[0] + 1 : halves[1]],
            *row[halves[1] + 1 :]), halves[0]  # fmt: skip


class Editor:
    """A draft with its history. Every method that changes the table can be undone."""

    def __init__(self, table: Table) -> None:
        rows = tuple(tuple(Cell(c.ops, i) for i, c in enumerate(row)) for row in table.rows)
        self.draft = Draft(Table(rows))
        self.saved = self.draft.table
        self.mark: tuple[int, int] | None = None
        """(rank, cell) of the marked action; None: none."""
        self._past: list[Draft] = []
        self._future: list[Draft] = []

    @property
    def changed(self) -> bool:
        """Return whether there are unsaved changes."""
        return self.draft.table != self.saved

    def go(self, rank: int, at: int) -> None:
        """Move the cursor to a cell, or to the nearest one."""
        rank = min(max(rank, 0), len(self.draft.table.rows) - 1)
        last = len(self.draft.table.rows[rank]) - 1
        self.draft = self.draft._replace(rank=rank, at=max(0, min(at, last)))

    def apply(self, new: Draft) -> None:
        """Take a changed draft."""
        if new.table == self.draft.table:
            return
        self._past.append(self.draft)
        self._future.clear()
        self.draft, self.mark = new, None

    def undo(self) -> None:
        """Restore the table before the last change. UserError if there was none."""
        self._back(self._past, self._future, "nothing to undo")

    def redo(self) -> None:
        """Restore the change that was undone last. UserError if there was none."""
        self._back(self._future, self._past, "nothing to redo")

    def _back(self, source: list[Draft], to: list[Draft], none: str) -> None:
        if not source:
            raise UserError(none)
        to.append(self.draft)
        self.draft, self.mark = source.pop(), None

    def marked(self) -> tuple[int, int]:
        """Return the marked place. UserError if there is none."""
        if self.mark is None:
            raise UserError("nothing is taken up: m takes the action under the cursor")
        return self.mark
