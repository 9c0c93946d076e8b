"""Growing columns of one kind of record, sorted by when a record becomes visible; and how much a
store keeps of each thing."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pardbg.events.fields import MAX_PROCS
from pardbg_agent import wire

FEW: Final = 32
"""Number of processes of a live run up to which each may keep its full number of rows."""
LEAST_ROWS: Final = 4096
MANY, MANY_ROWS, STEPS = 512, 320, 32
"""Beyond MANY processes each keeps MANY_ROWS rows of a kind, except that rows of the newest STEPS
steps, from which findings are made, are kept up to LEAST_ROWS."""
STEP_ROWS: Final = {"step": 1024, "memory": 640, "metric": 1024}
"""Rows always kept of kinds with few records a step: a leak shows over hundreds of steps."""
KEEP_NS: Final = 900_000_000_000
"""15 minutes in ns: the age up to which a live viewer keeps rows, whatever the job's pace."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits to the data in a store. Beyond them the oldest data is dropped and counted."""

    rows_per_kind: int | None
    """Records per process and kind, of few processes: see ``rows``."""
    records: int
    """Maximum number of records; later ones are refused and counted in ``Store.over_limit``."""
    output_lines: int
    states: int
    controls: int
    processes: int = MAX_PROCS
    """Beyond so many, lives that have ended are forgotten, oldest first."""
    keep_ns: int | None = None
    """Age beyond which rows are dropped, except LEAST_ROWS of a kind (of lines, states and control
    events: a fifth); None: no limit of age."""

    @staticmethod
    def live() -> Limits:
        """Return the limits for a live viewer, which may run for days: about 40 MiB per process
        (54 bytes a record, ten kinds that fill up), of more than MANY some 0.4 MiB; of a slow job a
        quarter of an hour."""
        return Limits(1 << 16, 1 << 62, 50_000, 20_000, 20_000, 2048, KEEP_NS)

    def rows(self, num_processes: int) -> int | None:
        """Return the records per kind that each of so many processes keeps: beyond FEW half as many
        for twice the processes, but at least LEAST_ROWS; beyond MANY see there."""
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
"""Rows of a new table: a thousand ranks have some twenty tables each, most of them short."""
_LAST_STEP: Final = 0xFFFFFFFF
_AT_ONCE: Final = 4096
"""Records whose columns are read at a time: from a near cache, that takes a quarter of the time."""
_BLOCKS: Final = {code: [n for n, of in COLUMNS if of == code] for _, code in COLUMNS}
_PLACES: Final = {
    name: (block, row)
    for block, names in enumerate(_BLOCKS.values()) for row, name in enumerate(names)
}  # fmt: skip
"""Column -> its block, and its row in the block."""
Blocks = list[Array]
"""Columns, with those of one type in one block (columns x rows)."""
PUT_BY_BYTES: Final = range(
    768 * wire.RECORD_BYTES, 1280 * wire.RECORD_BYTES, 32 * wire.RECORD_BYTES
)
"""Bytes kept before a move, by shelf: with many ranks, moving few records takes as long as moving
many; and if all moved at once, frames would wait meanwhile."""
SHELF: Final = 64
"""Number of processes of a live run whose rows share one shelf, side by side."""


def _empty(*shape: int) -> Blocks:
    return [np.empty((len(names), *shape), code) for code, names in _BLOCKS.items()]


def blocks_of(records: Array) -> Blocks:
    """Return the columns of records."""
    blocks = _empty(len(records))
    for begin in range(0, len(records), _AT_ONCE):
        part = slice(begin, begin + _AT_ONCE)
        for name, (block, row) in _PLACES.items():
            blocks[block][row, part] = records[name][part]
    return blocks


def part_of(blocks: Blocks, rows: slice | Array) -> Blocks:
    """Return some rows of each column."""
    return [block[:, rows] for block in blocks]


def _column(blocks: Blocks, name: str) -> Array:
    block, row = _PLACES[name]
    found: Array = blocks[block][row]
    return found


class Shelf:
    """Rows of one kind of some processes, side by side (columns x processes x rows): for a thousand
    ranks with a few new rows each, the numpy calls would take most of the time."""

    def __init__(self) -> None:
        self.blocks = _empty(1, 0)
        self.tables: list[Table] = []
        """Tables by their place on the shelf."""

    def add(self, table: Table) -> int:
        """Add a table; return its place."""
        _, width, room = self.blocks[0].shape
        if len(self.tables) == width:
            self._lay_out(2 * width, room)
        self.tables.append(table)
        return len(self.tables) - 1

    def reserve(self, tables: Sequence[Table], counts: Sequence[int]) -> None:
        """Make room for so many more rows in each of these tables."""
        _, width, room = self.blocks[0].shape
        pairs = [*zip(tables, counts, strict=True)]
        wanted = max(len(table) + count for table, count in pairs)
        if wanted <= room:
            self._move(self.blocks, [table for table, count in pairs if table.end + count > room])
        else:  # of a file they come all at once
            self._lay_out(width, max(_MIN_ROWS, wanted * 9 // 8) if room else wanted)

    def _lay_out(self, width: int, room: int) -> None:
        before, self.blocks = self.blocks, _empty(width, room)
        self._move(before, self.tables)

    def _move(self, blocks: Blocks, tables: Sequence[Table]) -> None:
        """Move the rows of tables from these blocks to the start of their places here."""
        for part in beside(tables, [(0, len(table)) for table in tables]):
            for block, before in zip(self.blocks, blocks, strict=True):
                rows = before[:, part.places, part.rows]
                block[:, part.places, : rows.shape[2]] = rows
        for table in tables:
            table.begin, table.end = 0, len(table)


class Shelves:
    """Shelves for the processes' tables: one per kind, of at most ``width`` processes."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._processes = 0
        self._newest: defaultdict[str, Shelf] = defaultdict(Shelf)

    def of_next(self) -> tuple[defaultdict[str, Shelf], int]:
        """Return the shelves for the next process, and its bytes to be kept before a move."""
        if self._processes % self._width == 0:
            self._newest = defaultdict(Shelf)
        number = self._processes // self._width
        self._processes += 1
        return self._newest, PUT_BY_BYTES[number % len(PUT_BY_BYTES)]


class Table:
    """Rows of one kind on one process.

    Rows are sorted by ``when`` (t1, or t0 for issues); ties keep their order of arrival. Records
    come nearly sorted, so an insertion touches only the tail. Views handed out are valid until
    the next append.
    """

    def __init__(
        self, when: str, limit: int | None, keep_ns: int | None = None, shelf: Shelf | None = None
    ) -> None:
        self.when_name = when
        self._keep_ns = keep_ns
        self.limit = limit
        """Rows kept, and a quarter more at times; None: all."""
        self.shelf = shelf or Shelf()
        self.place = self.shelf.add(self)
        self.begin = self.end = 0
        """First row of the table in its place on the shelf."""
        self.base = 0
        """Rows evicted so far; row i of the table is the run's row base + i."""
        self.rewritten_from: int | None = None
        """Smallest run row that an insertion moved since somebody cleared this."""
        self.step_sorted = True
        self.longest_ns = 0
        """Longest t1 - t0 of any row, for overlap searches."""
        self._newest_ns = self._last_step = 0
        """``when`` of the last row, ns."""

    def __len__(self) -> int:
        return self.end - self.begin

    def col(self, name: str) -> Array:
        """Return one column, oldest row first. Callers must not write to it."""
        block, row = _PLACES[name]
        return self.shelf.blocks[block][row, self.place, self.begin : self.end]

    def tuples(self, rows: Array | slice, *names: str) -> Iterator[Any]:
        """Return a tuple of Python values per row, of these columns."""
        return zip(*(self.col(name)[rows].tolist() for name in names), strict=True)

    @property
    def when(self) -> Array:
        return self.col(self.when_name)

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

    def took(self, count: int, when: Span, steps: Span, longest_ns: int, in_order: bool) -> None:
        """Take note of new rows at the end, sorted by ``when``, with the first and the last row's
        values."""
        at = len(self)
        self.end += count
        self.longest_ns = max(self.longest_ns, longest_ns)
        if at and when[0] < self._newest_ns:
            at = self._merge(at, when[0])
            late = self.col("step")[max(at - 1, 0) :]
            self.step_sorted = self.step_sorted and not bool((late[1:] < late[:-1]).any())
            self._last_step = int(late[-1])
        else:
            self._newest_ns = when[1]
            self.step_sorted &= in_order and (not at or self._last_step <= steps[0])
            self._last_step = steps[1]

    def _merge(self, appended_at: int, earliest: int) -> int:
        """Sort the tail from where the earliest new row belongs; returns that row."""
        at = int(np.searchsorted(self.when[:appended_at], earliest, side="right"))
        order = np.argsort(self.when[at:], kind="stable")
        for block in self.shelf.blocks:
            tail = block[:, self.place, self.begin + at : self.end]
            tail[:] = tail[:, order]
        self._newest_ns = int(self.when[-1])
        row = self.base + at
        if self.rewritten_from is None or row < self.rewritten_from:
            self.rewritten_from = row
        return at

    def shift(self, by_ns: int) -> None:
        """Move all rows in time; their order does not change."""
        for name in ("t0_ns", "t1_ns"):
            self.col(name)[:] += by_ns
        self._newest_ns += by_ns

    def excess(self) -> int:
        """Rows to evict now: with slack, so that eviction is rare and cheap per row."""
        rows = len(self)
        over = rows - self.limit if self.limit is not None else 0
        if over > rows // 5 and rows - over < LEAST_ROWS:
            over = min(over, max(self._before_newest(STEPS), rows - LEAST_ROWS))
        if self._keep_ns is not None and rows > LEAST_ROWS + LEAST_ROWS // 4:
            old = int(self.when.searchsorted(self._newest_ns - self._keep_ns))
            over = max(over, min(old, rows - LEAST_ROWS))
        return over if over > (rows - over) // 4 else 0

    def _before_newest(self, num_steps: int) -> int:
        """Return the number of rows before those of the newest steps."""
        steps = self.col("step")
        since = np.uint32(max(0, int(steps[-1]) - num_steps + 1))
        return int(steps.searchsorted(since) if self.step_sorted else (steps >= since).argmax())

    def evict(self, count: int) -> None:
        self.begin += count
        self.base += count


Span = tuple[int, int]


class Beside(NamedTuple):
    """Rows of tables that stand beside each other on a shelf."""

    shelf: Shelf
    places: slice
    rows: slice

    def col(self, name: str) -> Array:
        """Return one column, tables x rows. Callers must not write to it."""
        block, row = _PLACES[name]
        return self.shelf.blocks[block][row, self.places, self.rows]


def beside(tables: Sequence[Table], rows: Sequence[Span]) -> Iterator[Beside]:
    """Yield the span of rows of each of these tables, in turn: several tables at once if their rows
    lie side by side, as for ranks that do the same work."""
    pairs = enumerate(zip(tables, rows, strict=True))
    keys = [(id(t.shelf), t.place - at, t.begin + lo, t.begin + hi) for at, (t, (lo, hi)) in pairs]
    for (*_, begin, end), group in itertools.groupby(range(len(keys)), keys.__getitem__):
        of = [tables[at] for at in group]
        places = slice(of[0].place, of[-1].place + 1)
        yield Beside(of[0].shelf, places, slice(begin, end))


def append(tables: Sequence[Table], counts: Sequence[int], new: Blocks) -> None:
    """Add records of one kind, already on the hub's clock, in any order: ``counts`` of each of
    these tables of one shelf, in turn."""
    numbers = np.array(counts)
    begins = np.cumsum(numbers) - numbers
    who = np.repeat(np.arange(len(tables)), numbers)
    goes_on = who[1:] == who[:-1]
    when = _column(new, tables[0].when_name)
    if (goes_on & (when[1:] < when[:-1])).any():
        new = part_of(new, np.lexsort((when, who)))
    when, steps = _column(new, tables[0].when_name), _column(new, "step")
    longest = np.maximum.reduceat(_column(new, "t1_ns") - _column(new, "t0_ns"), begins)
    mixed = set(who[1:][goes_on & (steps[1:] < steps[:-1])].tolist())
    shelf, at = tables[0].shelf, 0
    shelf.reserve(tables, counts)
    pairs = zip(tables, counts, strict=True)
    for part in beside(tables, [(len(table), len(table) + count) for table, count in pairs]):
        for block, added in zip(shelf.blocks, new, strict=True):
            to = block[:, part.places, part.rows]
            size = to[0].size
            to[:] = added[:, at : at + size].reshape(to.shape)
        at += size
    lasts = begins + numbers - 1
    spans = (zip(of[begins].tolist(), of[lasts].tolist(), strict=True) for of in (when, steps))
    facts = zip(tables, counts, *spans, longest.tolist(), strict=True)
    for at, (table, *fact) in enumerate(facts):
        table.took(*fact, in_order=at not in mixed)
