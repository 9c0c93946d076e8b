"""One table of all ranks as columns: for a thousand ranks array operations replace a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, Final, Literal

import numpy as np

from pardbg.store.table import COLUMNS, Array, Beside, Table, beside

MANY: Final = 64
"""Minimum number of ranks for which a table's rows are searched for at once."""
_MOST_ROWS: Final = 1 << 21
"""Maximum number of rows whose columns are copied: a store has them already."""
_CODES: Final = dict(COLUMNS)
_LAST_STEP: Final = 0xFFFFFFFF
_FEW: Final = 4
"""Number of tables side by side below which each is searched by itself."""
_COMPARED: Final = 512
"""Number of rows above which comparing each row takes longer than searching."""
Columns = dict[str, Array]
"""Column -> values of one rank after the other; ``who``: place of the rank in the view."""
Side = Literal["left", "right"]
_WHEN: Final = attrgetter("when")


class Joined:
    """One table of several processes, concatenated. Valid until the store changes."""

    def __init__(self, tables: Sequence[Table], t_ns: int, grows: bool = False) -> None:
        self.tables = tables
        self._made_ns = t_ns
        self._grows = grows
        """Whether the next cursor finds more rows, so that copying whole columns does not pay."""
        self._cols: Columns = {}

    @cached_property
    def sizes(self) -> Array:
        """Return the number of rows of each process."""
        return np.array([len(table) for table in self.tables], np.int64)

    @cached_property
    def _beside(self) -> list[Beside]:
        """Return all rows, of several processes at once where they lie side by side."""
        return [*beside(self.tables, [(0, size) for size in self.sizes.tolist()])]

    @cached_property
    def starts(self) -> Array:
        """Return the index of each process's first row."""
        return np.cumsum(self.sizes) - self.sizes

    @cached_property
    def filled(self) -> list[int]:
        """Return the places of processes that have, or had, rows in this table."""
        return [place for place, table in enumerate(self.tables) if len(table) or table.base]

    @cached_property
    def in_order(self) -> bool:
        """Return whether all rows are sorted by step."""
        return all(table.step_sorted for table in self.tables)

    def kept_for(self, t_ns: int) -> bool:
        """Return whether whole columns are concatenated and kept: for many ranks, from the second
        cursor on. A report has only one cursor, and a live run's tables grow between two."""
        if len(self.tables) < MANY or t_ns == self._made_ns or self._grows:
            return False
        return int(self.sizes.sum()) <= _MOST_ROWS

    def col(self, name: str) -> Array:
        """Return one column over all rows."""
        return self._col(name, lambda table: table.col(name))

    def before(self, t_ns: int | Array, side: Side) -> Array:
        """Return the number of rows of each process visible before ``t_ns`` (one time, or one per
        process); with ``right`` up to and including it."""
        if len(self.tables) >= MANY and not self._grows:
            return self._search(self._col("", _WHEN), t_ns, side)
        return self._count("", t_ns, side)

    def steps_before(self, step: int, side: Side) -> Array:
        """Return each process's number of rows with steps before ``step``; needs `in_order`."""
        wanted = np.uint32(min(max(step, 0), _LAST_STEP))
        if len(self.tables) >= MANY and not self._grows:
            return self._search(self.col("step"), wanted, side)
        return self._count("step", wanted, side)

    def _count(self, name: str, wanted: Any, side: Side) -> Array:
        """Return `searchsorted` within each process's rows, in place."""
        if not self.sizes.any():
            return np.zeros_like(self.sizes)
        left, found = np.broadcast_to(wanted, len(self.tables)), []
        for part in self._beside:
            values = part.col(name or self.tables[0].when_name)
            than, left = left[: len(values), None], left[len(values) :]
            if len(values) < _FEW or not 0 < values.shape[1] <= _COMPARED:
                pairs = zip(values, than, strict=True)
                found += [row.searchsorted(at, side) for row, at in pairs]
            else:  # the first that is not less; numpy takes ten times as long to count those
                less = values < than if side == "left" else values <= than
                found.append(np.where(less[:, -1], values.shape[1], less.argmin(axis=1)))
        return np.concatenate(found)

    def _search(self, values: Array, wanted: Any, side: Side) -> Array:
        """Return `searchsorted` within each process's rows, for all at once."""
        low, high = self.starts.copy(), self.starts + self.sizes
        wanted = np.broadcast_to(wanted, len(low))
        while len(at := np.flatnonzero(low < high)):
            middle = (low[at] + high[at]) >> 1
            found, than = values[middle], wanted[at]
            less = found < than if side == "left" else found <= than
            low[at[less]], high[at[~less]] = middle[less] + 1, middle[~less]
        return low - self.starts

    def _col(self, name: str, of: Callable[[Table], Array]) -> Array:
        if name not in self._cols:
            parts = [of(table) for table in self.tables]
            self._cols[name] = np.concatenate(parts) if parts else np.empty(0, np.int64)
        return self._cols[name]


class Rows:
    """Visible rows of a table of all ranks, at a cursor."""

    def __init__(self, joined: Joined, t_ns: int) -> None:
        self._joined, self._kept = joined, joined.kept_for(t_ns)
        self.counts = joined.before(t_ns, "right")
        """Number of visible rows of each rank."""

    def before(self, t_ns: int | Array, side: Side = "left") -> Array:
        """Return each rank's number of rows visible before ``t_ns``; with ``right`` up to it."""
        return np.minimum(self._joined.before(t_ns, side), self.counts)

    def newest(self, name: str) -> Array:
        """Return a column's value in each rank's newest row, for ranks that have one."""
        return self._last(name, lambda table: table.col(name))[1]

    def newest_when(self) -> Array:
        """Return the time at which each rank's newest row became visible; 0 without rows."""
        found = np.zeros(len(self.counts), np.int64)
        some, times = self._last("", _WHEN)
        found[some] = times
        return found

    def _last(self, name: str, of: Callable[[Table], Array]) -> tuple[Array, Array]:
        """Return (places of ranks with rows, value in the newest row of each)."""
        joined, some = self._joined, np.flatnonzero(self.counts)
        last = self.counts[some] - 1
        if self._kept:
            return some, joined._col(name, of)[joined.starts[some] + last]
        pairs = zip(some.tolist(), last.tolist(), strict=True)
        return some, np.array([of(joined.tables[at])[row] for at, row in pairs], np.int64)

    def take(self, names: Sequence[str], begins: Array, ends: Array | None = None) -> Columns:
        """Return columns of each rank's rows from its begin up to its end."""
        lengths = np.maximum((self.counts if ends is None else ends) - begins, 0)
        columns = {"who": np.repeat(np.arange(len(lengths)), lengths)}
        if self._kept:
            shift = self._joined.starts + begins - (np.cumsum(lengths) - lengths)
            at = np.arange(int(lengths.sum())) + np.repeat(shift, lengths)
            return columns | {name: self._joined.col(name)[at] for name in names}
        some = np.flatnonzero(lengths)
        tables = [self._joined.tables[who] for who in some.tolist()]
        rows = zip(begins[some].tolist(), (begins + lengths)[some].tolist(), strict=True)
        parts = [*beside(tables, [*rows])]
        return columns | {
            name: np.concatenate(
                [np.empty(0, _CODES[name]), *(of.col(name).ravel() for of in parts)]
            )
            for name in names
        }

    def of_steps(self, names: Sequence[str], first: int, last: int) -> Columns:
        """Return columns of each rank's rows with first <= step <= last."""
        joined = self._joined
        if joined.in_order:
            ends = np.minimum(joined.steps_before(last, "right"), self.counts)
            return self.take(names, joined.steps_before(first, "left"), ends)
        parts = [
            (who, table.step_rows(first, last, count))
            for who, (table, count) in enumerate(
                zip(joined.tables, self.counts.tolist(), strict=True)
            )
            if count
        ]
        parts = [(who, rows) for who, rows in parts if len(rows)]
        lengths = [len(rows) for _, rows in parts]
        who = np.repeat(np.array([who for who, _ in parts], np.int64), lengths)
        tables = joined.tables
        return {"who": who} | {
            name: np.concatenate([tables[place].col(name)[rows] for place, rows in parts])
            if parts else np.empty(0, _CODES[name])
            for name in names
        }  # fmt: skip
