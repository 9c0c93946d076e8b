"""Tables of integers as byte planes: small after zstd where neighbouring rows are alike.

A table is cut into blocks, one for each process. Each column of a block is stored byte by byte: the
lowest bytes of all numbers, then the next ones, as many as the largest number of any block needs.
docs/session-format.md has the layout. Sums wrap at 64 bits, so every int64 comes back as it was.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Rows = NDArray[np.intp]
_COUNT: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Column:
    """Name of a column, and the encoding of its numbers."""

    name: str
    differences: bool = True
    """Whether differences to the row above are stored; False: the numbers themselves."""


@dataclass(frozen=True, slots=True)
class Head:
    """Position and encoding of a block's rows in its data."""

    widths: bytes
    """Number of planes of each column."""
    count: int
    first: int
    """Offset of the numbers in the first row."""
    planes: int
    """Offset of the planes."""
    end: int


@dataclass(frozen=True, slots=True)
class Table:
    """Blocks of a table, with their rows one after the other; columns are decoded one by one, as
    all of them take far more memory than the values made of them."""

    layout: Sequence[Column]
    widths: bytes
    planes: NDArray[np.uint8]
    firsts: Ints
    """Numbers in the first row, by block and column."""
    counts: Rows
    """Number of rows of each block."""

    def column(self, name: str) -> Ints:
        """Return the numbers of a column."""
        place = next(at for at, column in enumerate(self.layout) if column.name == name)
        plane = sum(self.widths[:place])
        values = _numbers(self.planes[plane : plane + self.widths[place]])
        some = self.counts > 0
        if self.layout[place].differences and len(values):
            _begin_anew(values, begins_of(self.counts)[some], self.firsts[some, place])
            values = np.cumsum(values, dtype=np.int64)
        return values


def begins_of(counts: NDArray[Any]) -> Rows:
    """Return the row at which each block begins."""
    begins: Rows = np.cumsum(counts) - counts
    return begins


def encode(layout: Sequence[Column], columns: Iterable[Ints], counts: Rows) -> list[bytes]:
    """Return each block's rows encoded: their count, widths, first numbers, planes."""
    begins = begins_of(counts)
    some = begins[counts > 0]
    firsts = np.zeros((len(counts), len(layout)), "<i8")
    planes: list[NDArray[np.uint8]] = []
    widths = bytearray()
    for place, (column, values) in enumerate(zip(layout, columns, strict=True)):
        if column.differences and len(some):
            firsts[counts > 0, place] = values[some]
            values = _differences(values)
            values[some] = 0
        own = _planes(values)
        widths.append(len(own))
        planes += own
    whole = np.array(planes, np.uint8).reshape(len(planes), int(counts.sum()))
    return [
        b"".join((_COUNT.pack(count), widths, first.tobytes(), whole[:, at : at + count].tobytes()))
        for count, at, first in zip(counts.tolist(), begins.tolist(), firsts, strict=True)
    ]


def head_of(layout: Sequence[Column], data: bytes, at: int) -> Head:
    """Return the head of the table that begins at ``at``. Raises ValueError."""
    first = at + _COUNT.size + len(layout)
    planes = first + 8 * len(layout)
    if planes > len(data):
        raise ValueError("a block shorter than its head")
    (count,) = _COUNT.unpack_from(data, at)
    widths = data[at + _COUNT.size : first]
    end = planes + sum(widths) * count
    if end > len(data) or max(widths) > 8:
        raise ValueError("a block of more rows than it has bytes for")
    return Head(widths, count, first, planes, end)


def decode(layout: Sequence[Column], blocks: Sequence[tuple[bytes, Head]]) -> Table:
    """Return the table of blocks whose columns have the same widths."""
    widths = blocks[0][1].widths
    width = sum(widths)
    parts = [
        np.frombuffer(data, np.uint8, width * head.count, head.planes).reshape(width, head.count)
        for data, head in blocks
    ]
    firsts = np.array([np.frombuffer(data, "<i8", len(layout), h.first) for data, h in blocks])
    counts = np.array([head.count for _, head in blocks], np.intp)
    return Table(layout, widths, np.concatenate(parts, axis=1), firsts, counts)


def _begin_anew(differences: Ints, begins: Rows, firsts: Ints) -> None:
    """Make the running sum begin at ``firsts`` in each block, independent of the other blocks."""
    last = firsts + np.add.reduceat(differences, begins)
    differences[begins] += firsts
    differences[begins[1:]] -= last[:-1]


def _differences(values: Ints) -> Ints:
    made = np.empty_like(values)
    np.subtract(values[1:], values[:-1], out=made[1:])
    return made


def _planes(values: Ints) -> list[NDArray[np.uint8]]:
    """Return zigzag numbers (0, -1, 1, -2 … as 0, 1, 2, 3 …) byte by byte, the lowest first."""
    folded = ((values << 1) ^ (values >> 63)).view(np.uint64)
    width = (int(folded.max()).bit_length() + 7) // 8 if len(folded) else 0
    return [(folded >> np.uint64(8 * place)).astype(np.uint8) for place in range(width)]


def _numbers(planes: NDArray[np.uint8]) -> Ints:
    folded = np.zeros(planes.shape[1], np.uint64)
    for place, plane in enumerate(planes):  # one or two, mostly
        folded |= plane.astype(np.uint64) << np.uint64(8 * place)
    half, sign = folded >> np.uint64(1), folded & np.uint64(1)
    return half.view(np.int64) ^ -sign.view(np.int64)
