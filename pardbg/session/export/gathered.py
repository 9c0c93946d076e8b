"""Records of one kind of many processes, one process after the other.

Ten thousand ranks of a few rows each take a few numpy calls, instead of a few for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pardbg.store.process import Process
from pardbg.store.table import Table

Array = NDArray[Any]


class Gathered:
    """Joined tables of several processes; a single table's columns are not copied."""

    def __init__(self, parts: Sequence[tuple[Process, Table]]) -> None:
        self.processes = [process for process, _ in parts]
        self._counts = [len(table) for _, table in parts]
        self._tables, self._columns = [table for _, table in parts], dict[str, Array]()
        self._combined: dict[tuple[str, ...], tuple[Array, list[tuple[int, ...]]]] = {}

    def __len__(self) -> int:
        return sum(self._counts)

    def col(self, name: str) -> Array:
        """Return one column, process by process, oldest row first. Callers must not write to it."""
        if name not in self._columns:
            parts = [table.col(name) for table in self._tables or [Table("t1_ns", None)]]
            self._columns[name] = np.concatenate(parts) if len(parts) > 1 else parts[0]
        return self._columns[name]

    def each(self, values: Sequence[int]) -> Array:
        """Return values per process as an array with the process's value for each of its rows."""
        return np.repeat(np.array(values, np.int64), self._counts)

    def who(self) -> Array:
        """Return the index of each row's process."""
        return self.each(range(len(self.processes)))

    def tuples(self, *names: str) -> Iterator[Any]:
        """Return a tuple of Python values per row, of these columns."""
        return zip(*(self.col(name).tolist() for name in names), strict=True)

    def combined(self, *names: str) -> tuple[Array, list[tuple[int, ...]]]:
        """Return each row's combination by number, and all: (process's index, these columns)."""
        if names not in self._combined:
            columns = [self.who(), *(self.col(name).astype(np.int64) for name in names)]
            self._combined[names] = _unique(columns)
        return self._combined[names]

    def by_id(self, name: str, value: Callable[[Process, int], int]) -> Array:
        """Return a number per row: what an id of this column means in the row's process."""
        inverse, keys = self.combined(name)
        found: Array = np.array([value(self.processes[at], i) for at, i in keys], np.int64)
        return found[inverse]


def _unique(columns: Sequence[Array]) -> tuple[Array, list[tuple[int, ...]]]:
    if not len(columns[0]):
        return np.empty(0, np.int64), []
    packed, room = np.zeros(len(columns[0]), np.int64), 1
    for part in columns:
        least, span = int(part.min()), int(part.max()) - int(part.min()) + 1
        packed, room = packed * span + (part - least), room * span
    if room >= 1 << 62:  # odd ids: the slow way
        _, first, inverse = np.unique(
            np.stack(columns, axis=1), axis=0, return_index=True, return_inverse=True
        )
    else:
        _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
    found = zip(*(part[first].tolist() for part in columns), strict=True)
    return inverse.reshape(-1), list(found)
