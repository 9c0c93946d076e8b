"""A store as it stood at a cursor: which rows were visible, which process was which rank."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import numpy as np

from pardbg.store.process import Process
from pardbg.store.store import Store
from pardbg.store.table import Array, Table

P = ParamSpec("P")
R = TypeVar("R")
MEMO_MAX: Final = 2048
"""A frame uses some hundred values of a kind. More would be of use to who comes back, but each
full collection of Python's, which a frame may have to wait for, walks all of them."""
_MANY: Final = 64
"""From so many ranks on a table's visible rows are searched for on all of them at once."""


class View:
    """One cursor's view. Make one per snapshot; cheap, and valid until the next apply."""

    def __init__(self, store: Store, t_ns: int | None) -> None:
        store.settle()
        self.store = store
        self.live = t_ns is None
        self.end_ns = store.end_ns
        self.begin_ns = min(store.begin_ns, self.end_ns)
        if t_ns is None or (store.part is not None and t_ns > self.end_ns):
            t_ns = self.end_ns  # a part that is looked at later is seen as it ended
        self.t_ns = t_ns
        self.ranks: dict[int, Process] = store.rank_procs(self.t_ns)
        self.epoch = max((process.epoch for process in self.ranks.values()), default=0)
        self._visible: dict[tuple[str, str], int] = {}
        self.local: dict[Hashable, Any] = {}
        """Values derived at this cursor, shared by the parts of one snapshot."""

    @property
    def elsewhere(self) -> set[int]:
        """Ranks of another role than the one that is looked at; empty where none was chosen."""
        if self.store.part is None:
            return set()
        life = (p.rank for p in self.store.procs.values() if p.epoch == self.epoch)
        return {rank for rank in life if rank is not None} - self.ranks.keys()

    def visible(self, process: Process, table: str) -> int:
        """Number of rows of a process's table visible at the cursor."""
        key = (process.proc, table)
        found = self._visible.get(key)
        if found is None:
            if len(self.ranks) >= _MANY and process is self.ranks.get(process.rank or 0):
                self._visible.update(self._visible_on_all(table))
                return self._visible[key]
            found = self._visible[key] = process.table(table).visible(self.t_ns)
        return found

    def _visible_on_all(self, name: str) -> dict[tuple[str, str], int]:
        """The number of visible rows of each rank's table: a search in all of them at a time."""
        keys, when, starts = self._times(name)
        low, high = starts[:-1].copy(), starts[1:].copy()
        while len(at := np.flatnonzero(low < high)):
            middle = (low[at] + high[at]) >> 1
            seen = when[middle] <= self.t_ns
            low[at[seen]], high[at[~seen]] = middle[seen] + 1, middle[~seen]
        return dict(zip(keys, (low - starts[:-1]).tolist(), strict=True))

    def _times(self, name: str) -> tuple[list[tuple[str, str]], Array, Array]:
        """When the rows of all ranks' tables become visible, one rank after the other; kept for
        the cursors of a recording."""
        of = self.store.revision, list(self.ranks.values())
        kept: dict[str, Any] = self.store.memo.setdefault("times", {})
        if name not in kept or kept[name][0] != of:
            times = [process.table(name).when for process in of[1]]
            keys = [(process.proc, name) for process in of[1]]
            kept[name] = of, (keys, np.concatenate(times), np.cumsum([0, *map(len, times)]))
        found: tuple[list[tuple[str, str]], Array, Array] = kept[name][1]
        return found

    def rows(self, process: Process, table: str) -> tuple[Table, int]:
        return process.table(table), self.visible(process, table)

    @property
    def num_records(self) -> int:
        return sum(p.num_records for p in self.store.procs.values())

    @property
    def run_end(self) -> tuple[int, int | None] | None:
        """(time, exit code) once the run has ended."""
        ended = [end for end in self.store.run_ends if end[0] <= self.t_ns]
        return ended[-1] if ended else None

    def proc_end(self, process: Process) -> tuple[int, str] | None:
        """(time, reason) once the process has ended."""
        ended = [end for end in process.ends if end[0] <= self.t_ns]
        return ended[-1] if ended else None

    def memo(self, kind: str, most: int = MEMO_MAX) -> dict[Any, Any]:
        """A store-wide cache of closed values; the older half goes where there are more than
        ``most``."""
        cache: dict[Any, Any] = self.store.memo.setdefault(kind, {})
        if len(cache) > most:
            for key in list(cache)[: len(cache) // 2]:
                del cache[key]
        return cache


def per_view(function: Callable[Concatenate[View, P], R]) -> Callable[Concatenate[View, P], R]:
    """Compute ``function`` once per view and arguments (hashable ones): the parts of one snapshot
    share what it returns, and nobody changes it."""

    @wraps(function)
    def kept(view: View, /, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (function, args, *kwargs.items())
        if key not in view.local:
            view.local[key] = function(view, *args, **kwargs)
        found: R = view.local[key]
        return found

    return kept


def per_store(
    key: Callable[Concatenate[View, P], Hashable], name: str = "", most: int = MEMO_MAX
) -> Callable[[Callable[Concatenate[View, P], R]], Callable[Concatenate[View, P], R]]:
    """Compute a function once per store and ``key`` of its arguments: for closed values, which
    rest on nothing that the key does not hold, whatever the cursor. ``name`` is the cache's, where
    several functions are made in one place; ``most`` as in ``View.memo``."""

    def of(function: Callable[Concatenate[View, P], R]) -> Callable[Concatenate[View, P], R]:
        @wraps(function)
        def kept(view: View, /, *args: P.args, **kwargs: P.kwargs) -> R:
            cache = view.memo(name or f"{function.__module__}.{function.__qualname__}", most)
            at = key(view, *args, **kwargs)
            if at not in cache:
                cache[at] = function(view, *args, **kwargs)
            found: R = cache[at]
            return found

        return kept

    return of
