"""Sums of ops over the rows of a table, as of any row."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pardbg.store.table import Table
from pardbg_agent import wire

_EVERY: Final = 8192
_MAX_CODES: Final = 4096
_NAME_MASK: Final = (1 << 18) - 1


@dataclass(frozen=True, slots=True)
class OpKey:
    """Key under which ops are summed, in one process's own ids."""

    name_id: int
    group_id: int
    peer: int
    send: bool


OTHER: Final = OpKey(-1, -1, -1, False)
"""Key for ops of further kinds than are counted apart, so that none counts under another's name."""


@dataclass(frozen=True, slots=True)
class _Mark:
    row: int
    counts: NDArray[np.int64]
    sizes: NDArray[np.int64]


class Totals:
    """Number and bytes per (op, group, peer, direction) over the first rows of a table."""

    def __init__(self, table: Table, *, sums: bool = False, sent: bool = False) -> None:
        self._table = table
        self._sums = sums
        """Whether rows are sums themselves: seq is the number of ops, a their bytes."""
        self._of_a = sums or sent
        """Whether the bytes are those sent, column a; else the larger of a and b."""
        self._codes: dict[int, int] = {}
        self._keys: list[OpKey] = []
        self._marks: list[_Mark] = [_Mark(0, np.zeros(0, np.int64), np.zeros(0, np.int64))]
        self._last = self._marks[0]

    @property
    def overflowed(self) -> bool:
        """Return whether some ops are under OTHER: the number of a key is a lower bound."""
        return len(self._keys) > _MAX_CODES

    def may_overflow(self, visible: int) -> bool:
        """Return whether some of the rows up to ``visible`` may be under OTHER."""
        return self._table.base + visible > _MAX_CODES

    def as_of(self, visible: int) -> list[tuple[OpKey, int, int]]:
        """Return (key, number, bytes) over the run's rows up to ``visible`` of the table."""
        self._forget_rewritten()
        row = self._table.base + visible
        mark = self._mark_before(row)
        if mark.row < self._last.row <= row:
            mark = self._last
        while mark.row + _EVERY < row:
            mark = self._advance(mark, mark.row + _EVERY)
            if mark.row > self._marks[-1].row:
                self._marks.append(mark)
        mark = self._advance(mark, row)
        self._last = mark
        return [(self._keys[i], int(n), int(mark.sizes[i])) for i, n in enumerate(mark.counts) if n]

    def keep_up(self) -> None:
        """Mark sums up to the newest rows, which late records may still move: without marks, the
        first look at a late moment would have to count the run up to there."""
        rows = self._table.base + len(self._table)
        if self._marks[-1].row + 2 * _EVERY > rows:
            return
        self._forget_rewritten()
        while self._marks[-1].row + 2 * _EVERY <= rows:
            mark = self._marks[-1]
            self._marks.append(self._advance(mark, mark.row + _EVERY))

    def before_evicting(self, count: int) -> None:
        """Keep the sums of rows that are about to be evicted."""
        self._forget_rewritten()
        row = self._table.base + count
        mark = self._advance(self._mark_before(row), row)
        self._marks = [mark, *(m for m in self._marks if m.row > row)]
        if self._last.row < row:
            self._last = mark

    def _mark_before(self, row: int) -> _Mark:
        at = bisect_right(self._marks, row, key=lambda mark: mark.row)
        return self._marks[max(0, at - 1)]

    def _forget_rewritten(self) -> None:
        row = self._table.rewritten_from
        if row is None:
            return
        self._table.rewritten_from = None
        self._marks = [self._marks[0], *(m for m in self._marks[1:] if m.row <= row)]
        if self._last.row > row:
            self._last = self._marks[-1]

    def _advance(self, mark: _Mark, row: int) -> _Mark:
        lo, hi = mark.row - self._table.base, row - self._table.base
        if hi <= (lo := max(lo, 0)):
            return mark
        index = self._codes_of(pack(self._table, lo, hi))
        sizes = self._table.col("a")[lo:hi]
        if not self._of_a:
            sizes = np.maximum(sizes, self._table.col("b")[lo:hi])
        sizes = np.clip(sizes, 0, 1 << 50)
        counts = np.zeros(len(self._keys), np.int64)
        total = np.zeros(len(self._keys), np.int64)
        counts[: len(mark.counts)] = mark.counts
        total[: len(mark.sizes)] = mark.sizes
        numbers = self._table.col("seq")[lo:hi] if self._sums else 1
        np.add.at(counts, index, numbers)
        np.add.at(total, index, sizes)
        return _Mark(row, counts, total)

    def _codes_of(self, packed: NDArray[np.int64]) -> NDArray[np.int64]:
        keys = sorted(set(packed.tolist()))  # a third of what np.unique takes
        codes = np.array([self._code(key) for key in keys], np.int64)
        return codes[np.array(keys, np.int64).searchsorted(packed)]

    def _code(self, packed: int) -> int:
        code = self._codes.get(packed)
        if code is None:
            if len(self._keys) >= _MAX_CODES:
                if not self.overflowed:
                    self._keys.append(OTHER)
                return _MAX_CODES
            code = self._codes[packed] = len(self._keys)
            self._keys.append(unpack(packed))
        return code


def pack(table: Table, lo: int, hi: int) -> NDArray[np.int64]:
    """Return one integer per row for (name, group, peer, send)."""
    name = table.col("name_id")[lo:hi].astype(np.int64) & _NAME_MASK
    group = table.col("group_id")[lo:hi].astype(np.int64)
    peer = table.col("peer")[lo:hi].astype(np.int64) & 0xFFFF
    send = (table.col("flags")[lo:hi] & int(wire.Flag.SEND)) != 0
    packed: NDArray[Any] = (name << 33) | (group << 17) | (peer << 1) | send
    return packed


def unpack(packed: int) -> OpKey:
    """Return the key that `pack` packed."""
    peer = (packed >> 1) & 0xFFFF
    return OpKey(
        name_id=packed >> 33,
        group_id=(packed >> 17) & 0xFFFF,
        peer=peer - 0x10000 if peer >= 0x8000 else peer,
        send=bool(packed & 1),
    )
