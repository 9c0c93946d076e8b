"""Layout of the ranks' squares: rows along the mesh's first axis, blocks along the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from pardbg.analysis.answers.device_mesh import Mesh
from pardbg.render.draw.squares import CELLS, PER_LINE, Form


@dataclass(frozen=True, slots=True)
class SquareLayout:
    """Places of a measure's squares."""

    mesh: Mesh
    form: Form
    rows: tuple[tuple[int, ...], ...]
    """First rank of each square, by row and column; -1: a gap between blocks, or no rank."""
    each: int
    """Number of ranks in a square: neighbours on the first axis."""
    heads: tuple[tuple[int, int, int], ...]
    """Heading of each block: (column, first coordinate of the rows, number of the block)."""

    @property
    def cells(self) -> int:
        return CELLS[self.form] * len(self.rows[0])

    @property
    def lines(self) -> int:
        return -(-len(self.rows) // PER_LINE[self.form])

    @property
    def folds(self) -> int:
        """Return the number of parts into which the first axis is cut, side by side."""
        return len({first for _, first, _ in self.heads})

    @property
    def blocks(self) -> int:
        """Return the number of blocks of a part: places on the axes between first and last."""
        return len(self.heads) // self.folds

    def ranks(self, first: int) -> range:
        """Return the ranks of the square that begins with rank ``first``."""
        stride = self.mesh.stride(0)
        return range(first, first + self.each * stride, stride)

    def place(self, rank: int) -> tuple[int, int] | None:
        """Return (row, column) of a rank's square."""
        stride, size = self.mesh.stride(0), self.mesh.axes[0].size
        at = rank // stride % size % self.each
        first = rank - at * stride
        return next(
            ((y, row.index(first)) for y, row in enumerate(self.rows) if first in row), None
        )

    def rank_at(self, row: int, column: int) -> int | None:
        """Return the first rank of a square."""
        if 0 <= row < len(self.rows) and 0 <= column < len(self.rows[0]):
            found = self.rows[row][column]
            return found if found >= 0 else None
        return None

    def beside(self, rank: int, down: int, right: int) -> int:
        """Return the first rank of the next square in a direction, across gaps; at the edge the
        same rank."""
        place = self.place(rank)
        if place is None:
            return rank
        row, column = place
        while 0 <= (row := row + down) < len(self.rows) and (
            0 <= (column := column + right) < len(self.rows[0])
        ):
            if (found := self.rank_at(row, column)) is not None:
                return found
        return rank


@lru_cache(maxsize=16)
def lay_out(mesh: Mesh, num_ranks: int, cells: int, lines: int, digits: bool) -> SquareLayout:
    """Return the largest squares with which all ranks fit, with gaps between blocks if possible; if
    the smallest squares do not fit, a square has several ranks."""
    forms: tuple[Form, ...] = ("digit",) if digits else ("wide", "half")
    made = [
        layout
        for form in forms for gap in (1, 0)
        if (layout := _layout(mesh, num_ranks, cells, max(1, lines), form, gap, 1)) is not None
    ]  # fmt: skip
    return made[0] if made else next(_coarser(mesh, num_ranks, cells, max(1, lines), forms[-1]))


def _coarser(
    mesh: Mesh, num_ranks: int, cells: int, lines: int, form: Form
) -> Iterator[SquareLayout]:
    each = 2
    while each < 2 * mesh.axes[0].size:
        layout = _layout(mesh, num_ranks, cells, lines, form, 0, each)
        if layout is not None:
            yield layout
        each *= 2
    yield _made(mesh, num_ranks, form, 0, mesh.axes[0].size, 1)  # wider than the page: it is cut


def _layout(
    mesh: Mesh, num_ranks: int, cells: int, lines: int, form: Form, gap: int, each: int
) -> SquareLayout | None:
    """Return the layout with ``each`` ranks a square; None if wider than ``cells``."""
    number = -(-mesh.axes[0].size // each)
    least = -(-number // (lines * PER_LINE[form]))
    even = (folds for folds in range(least, 2 * least) if number % folds == 0)
    made = _made(mesh, num_ranks, form, gap, each, next(even, least))
    return made if made.cells <= cells else None


def _inside(mesh: Mesh) -> list[int]:
    """Return the first rank of each column: of the places on all axes but the first, in order."""
    found = [0]
    for at, axis in enumerate(mesh.axes[1:], 1):
        found = [first + x * mesh.stride(at) for first in found for x in range(axis.size)]
    return found


def _made(mesh: Mesh, num_ranks: int, form: Form, gap: int, each: int, folds: int) -> SquareLayout:
    outer, *inner = (axis.size for axis in mesh.axes)
    last = inner[-1] if inner else 1
    blocks, stride, inside = prod(inner[:-1]), mesh.stride(0), _inside(mesh)
    number = -(-outer // each)
    tall = -(-number // folds)
    heads, columns = list[tuple[int, int, int]](), list[tuple[int, int] | None]()
    for fold in range(folds):
        for block in range(blocks):
            columns += [None] * gap if columns else []
            heads.append((len(columns), fold * tall * each, block))
            columns += [(fold, block * last + x) for x in range(last)]
    rows = []
    for y in range(tall):
        row = []
        for column in columns:
            at = -1 if column is None else (column[0] * tall + y) * each
            first = -1 if column is None or at >= outer else at * stride + inside[column[1]]
            row.append(first if first < num_ranks else -1)
        rows.append(tuple(row))
    return SquareLayout(mesh, form, tuple(rows), each, tuple(heads))
