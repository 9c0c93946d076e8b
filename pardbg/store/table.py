"""Growing columns of one kind of record, sorted by when a record becomes visible; their sums;
and how much a store keeps of each thing."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pardbg.events.fields import MAX_PROCS
from pardbg_agent import wire

FEW: Final = 32
"""Processes of a live run that each keep all they may."""
LEAST_ROWS: Final = 4096
MANY, MANY_ROWS, STEPS = 512, 320, 32
"""Beyond so many processes each keeps so many rows of a kind, but those of the newest STEPS, which
findings are made of, up to LEAST_ROWS."""
STEP_ROWS: Final = {"step": 1024, "memory": 640, "metric": 1024}
"""Rows that are kept in any case of kinds with few a step: a leak shows over hundreds of steps."""
KEEP_NS: Final = 900_000_000_000
"""A quarter of an hour: within it a live viewer fills up, whatever the pace of the job."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a store keeps. What goes beyond is dropped oldest first and counted."""

    rows_per_kind: int | None
    """Records per process and kind, of few processes: see ``rows``."""
    records: int
    """Records in all; later ones are refused and counted in ``Store.over_limit``."""
    output_lines: int
    states: int
    controls: int
    processes: int = MAX_PROCS
    """Beyond so many, lives that have ended are forgotten, oldest first."""
    keep_ns: int | None = None
    """What is older goes before that, but for LEAST_ROWS of a kind (of lines, states and control
    events: a fifth); None: nothing is too old."""

    @staticmethod
    def live() -> Limits:
        """Return the limits for a live viewer, which may run for days: about 40 MiB per process
        (54 bytes a record, ten kinds that fill up), of more than MANY some 0.4 MiB; of a slow job a
        quarter of an hour."""
        return Limits(1 << 16, 1 << 62, 50_000, 20_000, 20_000, 2048, KEEP_NS)

    def rows(self, num_processes: int) -> int | None:
        """Return records per kind that each of so many processes keeps: beyond FEW half as many
        whenever they are twice as many, but LEAST_ROWS; beyond MANY see there."""
        if self.rows_per_kind is None:
            return None
        if num_processes > MANY:
            return min(MANY_ROWS, self.rows_per_kind)
        halved = (max(0, num_processes - 1) // FEW).bit_length()
        return max(min(LEAST_ROWS, self.rows_per_kind), self.rows_per_kind >> halved)

    @staticmethod
    def file() -> Limits:
        """Return the limits for a file: kept whole up to 50 M records (about 3 GiB)."""
        return Limits(None, 50_000_000, 2_000_000, 500_000, 500_000)


Array = NDArray[Any]

COLUMNS: Final = tuple(
    field for field in wire.RECORD_FIELDS if field[0] not in ("kind", "lane", "mark")
)
_MIN_ROWS: Final = 32
"""A thousand ranks have some twenty tables each, most of them short."""
_LAST_STEP: Final = 0xFFFFFFFF
_EVERY: Final = 8192
_MAX_CODES: Final = 4096
_NAME_MASK: Final = (1 << 18) - 1
_BLOCKS: Final = {code: [n for n, of in COLUMNS if of == code] for _, code in COLUMNS}
_PLACES: Final = {
    name: (block, row)
    for block, names in enumerate(_BLOCKS.values()) for row, name in enumerate(names)
}  # fmt: skip
"""Column -> its block, and its row there."""
Blocks = list[Array]
"""Columns, those of a type in one block (columns x rows): of a thousand ranks with some rows each,
numpy's calls are what takes long."""


def _empty(rows: int) -> Blocks:
    return [np.empty((len(names), rows), code) for code, names in _BLOCKS.items()]


def blocks_of(records: Array) -> Blocks:
    """Return the columns of records."""
    blocks = _empty(len(records))
    for name, (block, row) in _PLACES.items():
        blocks[block][row] = records[name]
    return blocks


def part_of(blocks: Blocks, rows: slice | Array) -> Blocks:
    """Return some rows of each column."""
    return [block[:, rows] for block in blocks]


_NO_ROWS: Final = _empty(0)


def _column(blocks: Blocks, name: str) -> Array:
    block, row = _PLACES[name]
    found: Array = blocks[block][row]
    return found


class Table:
    """Rows of one kind on one process.

    Rows are sorted by ``when`` (t1, or t0 for issues); ties keep their order of arrival. Records
    come nearly sorted, so an insertion touches only the tail. Views handed out are valid until
    the next append.
    """

    def __init__(self, when: str, limit: int | None, keep_ns: int | None = None) -> None:
        self._when = when
        self._keep_ns = keep_ns
        self.limit = limit
        """Rows kept, and a quarter more at times; None: all."""
        self._blocks = _NO_ROWS
        self._lo = 0
        self._hi = 0
        self.base = 0
        """Rows evicted so far; row i of the table is the run's row base + i."""
        self.rewritten_from: int | None = None
        """Smallest run row that an insertion moved since somebody cleared this."""
        self.step_sorted = True
        self.longest_ns = 0
        """Longest t1 - t0 of any row, for overlap searches."""

    def __len__(self) -> int:
        return self._hi - self._lo

    def col(self, name: str) -> Array:
        """Return one column, oldest row first. Do not write to it."""
        block, row = _PLACES[name]
        return self._blocks[block][row, self._lo : self._hi]

    def tuples(self, rows: Array | slice, *names: str) -> Iterator[Any]:
        """Return a tuple of Python values per row, of these columns."""
        return zip(*(self.col(name)[rows].tolist() for name in names), strict=True)

    @property
    def when(self) -> Array:
        return self.col(self._when)

    def visible(self, t_ns: int | None) -> int:
        """Return the number of rows visible at ``t_ns`` (all for None)."""
        if t_ns is None:
            return len(self)
        return int(self.when.searchsorted(t_ns, side="right"))

    def step_rows(self, first: int, last: int, visible: int) -> Array:
        """Return the indices of the visible rows with first <= step <= last."""
        steps = self.col("step")[:visible]
        if self.step_sorted:
            # A plain int would have numpy copy the whole column as int64 first.
            low, high = (np.uint32(min(max(n, 0), _LAST_STEP)) for n in (first, last))
            lo = int(steps.searchsorted(low, side="left"))
            hi = int(steps.searchsorted(high, side="right"))
            return np.arange(lo, hi)
        return np.flatnonzero((steps >= first) & (steps <= last))

    def rows_by_step(self, first: int, last: int, visible: int) -> Array:
        """Return the number of visible rows of each step in first..last."""
        steps = self.col("step")[:visible]
        if self.step_sorted:
            return np.diff(steps.searchsorted(np.arange(first, last + 2, dtype=np.uint32)))
        near = steps[(steps >= first) & (steps <= last)].astype(np.int64)
        return np.bincount(near - first, minlength=last - first + 1)

    def append(self, new: Blocks) -> None:
        """Take records of its kind, already on the hub's clock, in any order."""
        begins, ends, when = (_column(new, name) for name in ("t0_ns", "t1_ns", self._when))
        if (when[1:] < when[:-1]).any():
            new = part_of(new, np.argsort(when, kind="stable"))
            when = _column(new, self._when)
        number, at = len(when), len(self)
        self.longest_ns = max(self.longest_ns, int((ends - begins).max()))
        earliest = int(when[0])
        late = at > 0 and earliest < int(self.when[-1])
        self._reserve(number)
        for block, added in zip(self._blocks, new, strict=True):
            block[:, self._hi : self._hi + number] = added
        self._hi += number
        if late:
            at = self._merge(at, earliest)
        if self.step_sorted:
            steps = self.col("step")[max(at - 1, 0) :]
            self.step_sorted = not bool((steps[1:] < steps[:-1]).any())

    def _merge(self, appended_at: int, earliest: int) -> int:
        """Sort the tail from where the earliest new row belongs; returns that row."""
        at = int(np.searchsorted(self.when[:appended_at], earliest, side="right"))
        order = np.argsort(self.when[at:], kind="stable")
        for block in self._blocks:
            tail = block[:, self._lo + at : self._hi]
            tail[:] = tail[:, order]
        row = self.base + at
        if self.rewritten_from is None or row < self.rewritten_from:
            self.rewritten_from = row
        return at

    def shift(self, by_ns: int) -> None:
        """Move all rows in time; their order stays."""
        for name in ("t0_ns", "t1_ns"):
            self.col(name)[:] += by_ns

    def excess(self) -> int:
        """Rows to evict now: with slack, so that eviction is rare and cheap per row."""
        rows = len(self)
        over = rows - self.limit if self.limit is not None else 0
        if over > rows // 5 and rows - over < LEAST_ROWS:
            over = min(over, max(self._before_newest(STEPS), rows - LEAST_ROWS))
        if self._keep_ns is not None and rows > LEAST_ROWS + LEAST_ROWS // 4:
            newest = int(self.when[-1])
            old = int(self.when.searchsorted(newest - self._keep_ns))
            over = max(over, min(old, rows - LEAST_ROWS))
        return over if over > (rows - over) // 4 else 0

    def _before_newest(self, num_steps: int) -> int:
        """Return the number of rows before those of the newest steps."""
        steps = self.col("step")
        since = np.uint32(max(0, int(steps[-1]) - num_steps + 1))
        return int(steps.searchsorted(since) if self.step_sorted else (steps >= since).argmax())

    def evict(self, count: int) -> None:
        self._lo += count
        self.base += count

    def _reserve(self, count: int) -> None:
        rows, room = len(self), self._blocks[0].shape[1]
        if self._hi + count <= room:
            return
        blocks = self._blocks
        if rows + count > room:  # of a file they come all at once
            self._blocks = _empty(max(_MIN_ROWS, (rows + count) * 9 // 8) if room else count)
        for block, before in zip(self._blocks, blocks, strict=True) if rows else ():
            block[:, :rows] = before[:, self._lo : self._hi]
        self._lo, self._hi = 0, rows


@dataclass(frozen=True, slots=True)
class OpKey:
    """What ops are summed over, in one process's own ids."""

    name_id: int
    group_id: int
    peer: int
    send: bool


OTHER: Final = OpKey(-1, -1, -1, False)
"""Nobody's key: ops of more kinds than are told apart, so that none counts under another's name."""


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
        """The rows are sums themselves: seq says of how many ops, a their bytes."""
        self._of_a = sums or sent
        """Bytes are what was sent, column a; else the larger of a and b."""
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
        """Mark what has come, but for the newest rows, which late ones may still move: else who
        looks at a late moment first has to count the run up to there."""
        rows = self._table.base + len(self._table)
        if self._marks[-1].row + 2 * _EVERY > rows:
            return
        self._forget_rewritten()
        while self._marks[-1].row + 2 * _EVERY <= rows:
            mark = self._marks[-1]
            self._marks.append(self._advance(mark, mark.row + _EVERY))

    def before_evicting(self, count: int) -> None:
        """Keep the sums of rows that are about to go."""
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
