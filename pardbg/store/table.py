"""Growing columns of one kind of record, kept sorted by the time a record becomes visible."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pardbg.events.decode import taken

Array = NDArray[Any]

COLUMNS: Final[tuple[tuple[str, str], ...]] = (
    ("name_id", "<u4"),
    ("t0_ns", "<i8"),
    ("t1_ns", "<i8"),
    ("step", "<u4"),
    ("seq", "<u4"),
    ("group_id", "<u2"),
    ("flags", "<u2"),
    ("stage", "<i2"),
    ("microbatch", "<i2"),
    ("peer", "<i2"),
    ("a", "<i8"),
    ("b", "<i8"),
)
_EMPTY: Final[dict[str, Array]] = {name: np.empty(0, dtype=code) for name, code in COLUMNS}
_MIN_ROWS: Final = 32
"""A thousand ranks have some twenty tables each, most of them short."""
_LAST_STEP: Final = 0xFFFFFFFF


class Table:
    """Rows of one kind on one process.

    Rows are sorted by ``when`` (t1, or t0 for issues); ties keep their order of arrival. Records
    come nearly sorted, so an insertion touches only the tail. Views handed out are valid until
    the next append.
    """

    def __init__(self, when: str, limit: int | None) -> None:
        self._when = when
        self._limit = limit
        self._cols: dict[str, Array] = dict(_EMPTY)
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
        return self._cols[name][self._lo : self._hi]

    @property
    def when(self) -> Array:
        return self.col(self._when)

    def visible(self, t_ns: int | None) -> int:
        """Number of rows visible at ``t_ns`` (all for None)."""
        if t_ns is None:
            return len(self)
        return int(self.when.searchsorted(t_ns, side="right"))

    def step_rows(self, first: int, last: int, visible: int) -> Array:
        """Indices of the visible rows with first <= step <= last."""
        steps = self.col("step")[:visible]
        if self.step_sorted:
            # A plain int would have numpy copy the whole column as int64 first.
            low, high = (np.uint32(min(max(n, 0), _LAST_STEP)) for n in (first, last))
            lo = int(steps.searchsorted(low, side="left"))
            hi = int(steps.searchsorted(high, side="right"))
            return np.arange(lo, hi)
        return np.flatnonzero((steps >= first) & (steps <= last))

    def append(self, rows: Array) -> None:
        """Take records (RECORD_DTYPE, one kind), already on the hub's clock."""
        if not len(rows):
            return
        when = rows[self._when]
        if len(when) > 1 and bool((when[1:] < when[:-1]).any()):
            rows = taken(rows, np.argsort(when, kind="stable"))
            when = rows[self._when]
        self.longest_ns = max(self.longest_ns, int((rows["t1_ns"] - rows["t0_ns"]).max()))
        late = len(self) > 0 and int(when[0]) < int(self.when[-1])
        at = len(self)
        self._reserve(len(rows))
        for name, _ in COLUMNS:
            self._cols[name][self._hi : self._hi + len(rows)] = rows[name]
        self._hi += len(rows)
        if late:
            at = self._merge(at, int(when[0]))
        if self.step_sorted:
            steps = self.col("step")[max(at - 1, 0) :]
            self.step_sorted = not bool((steps[1:] < steps[:-1]).any())

    def _merge(self, appended_at: int, earliest: int) -> int:
        """Sort the tail from where the earliest new row belongs; returns that row."""
        at = int(np.searchsorted(self.when[:appended_at], earliest, side="right"))
        order = np.argsort(self.when[at:], kind="stable")
        for name, _ in COLUMNS:
            tail = self.col(name)[at:]
            tail[:] = tail[order]
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
        if self._limit is None or len(self) <= self._limit + self._limit // 4:
            return 0
        return len(self) - self._limit

    def evict(self, count: int) -> None:
        self._lo += count
        self.base += count

    def _reserve(self, count: int) -> None:
        size = len(self._cols["t0_ns"])
        if self._hi + count <= size:
            return
        rows = len(self)
        grown = max(_MIN_ROWS, (rows + count) + (rows + count) // 2)
        for name, code in COLUMNS:
            fresh = np.empty(grown, dtype=code)
            fresh[:rows] = self.col(name)
            self._cols[name] = fresh
        self._lo, self._hi = 0, rows
