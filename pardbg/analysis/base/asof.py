"""A store at a cursor: the visible rows, and the process of each rank."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

import numpy as np

from pardbg.analysis.base.rank_columns import MANY, Joined, Rows
from pardbg.store.definitions import Failure
from pardbg.store.intake import to_columns
from pardbg.store.process import Process
from pardbg.store.store import Store
from pardbg.store.table import Array, Table

P = ParamSpec("P")
R = TypeVar("R")
MEMO_MAX: Final = 2048
"""Maximum number of closed values of one kind kept for a recording. More would help a user who
comes back, but each full collection by Python, which a frame may wait for, walks all of them."""
LIVE_MEMO_MAX: Final = 512
"""Maximum number of closed values of one kind kept for a live run, or two per rank if that is more:
a frame uses some hundred. A following viewer never comes back to older ones, and would fill its
memory with them within half an hour."""
_EVICTED: Final = 8
"""Divisor of the share of values, the oldest, that a full cache evicts at a time: evicting half
would let the memory of a long run rise from one peak to the next."""


class Moment(NamedTuple):
    """A moment of a live run."""

    t_ns: int
    """Horizon of the run at that moment, in ns."""
    now_ns: int


class View:
    """The store at one cursor. Cheap: make one per snapshot, valid until the next message."""

    def __init__(
        self, store: Store, t_ns: int | None, *, few: bool = False, then: Moment | None = None,
        of_look: dict[Hashable, Any] | None = None,
    ) -> None:  # fmt: skip
        """Make a view. ``few``: only the records of a few ranks are looked at. ``then``: a live run
        at an earlier moment; newer data stays out of its tables (`as_they_are`). ``of_look``:
        values that `per_look` keeps for several views of one look."""
        store.settle()
        self.store = store
        self.live = t_ns is None
        self.end_ns = store.end_ns if then is None else then.now_ns
        self.begin_ns = min(store.begin_ns, self.end_ns)
        if t_ns is not None and store.part is not None:
            t_ns = min(t_ns, self.end_ns)  # a part viewed later is shown as of its end
        self.now_ns = self.end_ns if t_ns is None else t_ns
        """Time up to which states, control, output, failures and process ends are known, in ns."""
        if t_ns is None:
            t_ns = max(store.horizon_ns, self.begin_ns) if then is None else then.t_ns
        self.t_ns = t_ns
        """Time up to which records are visible, in ns."""
        self.ranks: dict[int, Process] = store.rank_procs(self.t_ns)
        self._many = len(self.ranks) >= MANY and not few
        """Whether tables are read for all ranks at once."""
        if not few and then is None:
            to_columns(self.ranks.values())
        self.epoch = max((process.epoch for process in self.ranks.values()), default=0)
        self.revision: Hashable = store.revision if then is None else then
        """Key of the tables' contents; it differs if the tables do."""
        self._visible: dict[tuple[str, str], int] = {}
        self._counts: dict[str, dict[str, int]] = {}
        """table -> process -> number of visible rows, where all ranks are read at once."""
        self.local: dict[Hashable, Any] = {}
        """Values derived at this cursor, shared by the parts of one snapshot."""
        self.of_look = self.local if of_look is None else of_look

    def done(self) -> None:
        """Drop all derived values. Some refer to the view itself: with many ranks 100 MB a minute
        would wait for the garbage collector."""
        self.local.clear()
        self.of_look = self.local

    @property
    def elsewhere(self) -> set[int]:
        """Return the ranks of other roles than the selected one; empty if none is selected."""
        if self.store.part is None:
            return set()
        life = (p.rank for p in self.store.procs.values() if p.epoch == self.epoch)
        return {rank for rank in life if rank is not None} - self.ranks.keys()

    def visible(self, process: Process, table: str) -> int:
        """Return the number of rows of a process's table visible at the cursor."""
        found = self._visible.get((process.proc, table))
        if found is None:
            of_all = self._counts.get(table)
            if of_all is None and self._many:
                procs = (other.proc for other in self.ranks.values())
                counts = self.all(table).counts.tolist()
                of_all = self._counts[table] = dict(zip(procs, counts, strict=True))
            found = of_all.get(process.proc) if of_all is not None else None
            if found is None:
                found = process.table(table).visible(self.t_ns)
                self._visible[process.proc, table] = found
        return found

    def having(self, table: str) -> list[tuple[int, Process]]:
        """Return the ranks that have rows in this table, visible or not."""
        ranks = list(self.ranks.items())
        return [ranks[place] for place in self.joined(table).filled]

    def all(self, name: str) -> Rows:
        """Return the visible rows of a table of each rank, in the order of ``ranks``."""
        key = ("rows of all", name)
        if key not in self.local:
            self.local[key] = Rows(self.joined(name), self.t_ns)
        found: Rows = self.local[key]
        return found

    def joined(self, name: str) -> Joined:
        """Return a table of all ranks, with rows not visible yet; kept for further cursors of a
        recording, as its tables do not move."""
        of = self.revision, list(self.ranks.values())
        memo: dict[Any, Any] = self.local if self.store.live else self.store.memo
        kept: dict[str, Any] = memo.setdefault("joined", {})
        if name not in kept or kept[name][0] != of:
            to_columns(process for process in of[1] if process.put_by.has(name))
            tables = [process.table(name) for process in of[1]]
            kept[name] = of, Joined(tables, self.t_ns, self.store.live)
        found: Joined = kept[name][1]
        return found

    def rows(self, process: Process, table: str) -> tuple[Table, int]:
        return process.table(table), self.visible(process, table)

    def step_rows(self, process: Process, name: str, step: int) -> tuple[Table, Array]:
        """Return a table and the indices of its visible rows in a step."""
        table, visible = self.rows(process, name)
        return table, table.step_rows(step, step, visible)

    def newest_ns(self, process: Process, tables: tuple[str, ...]) -> int:
        """Return when the newest row of these tables became visible, in ns; 0 without rows."""
        if self._many:
            key = ("newest of all", tables)
            if key not in self.local:
                newest = np.max([self.all(name).newest_when() for name in tables], axis=0)
                procs = (other.proc for other in self.ranks.values())
                self.local[key] = dict(zip(procs, newest.tolist(), strict=True))
            if process.proc in self.local[key]:
                return int(self.local[key][process.proc])
        rows = (self.rows(process, name) for name in tables)
        return max((int(table.when[n - 1]) for table, n in rows if n), default=0)

    @property
    def num_records(self) -> int:
        return sum(p.num_records for p in self.store.procs.values())

    @property
    def run_end(self) -> tuple[int, int | None] | None:
        """Return (time, exit code) once the run has ended."""
        ended = [end for end in self.store.run_ends if end[0] <= self.now_ns]
        return ended[-1] if ended else None

    def proc_end(self, process: Process) -> tuple[int, str] | None:
        """Return (time, reason) once the process has ended."""
        if not process.ends:
            return None
        ended = [end for end in process.ends if end[0] <= self.now_ns]
        return ended[-1] if ended else None

    def fatal(self, process: Process) -> list[Failure]:
        """Return the exceptions that ended the process's main thread, first to last; like its end
        they are known before all records of other ranks have arrived."""
        return [f for f in process.failures if f.thread == "MainThread" and f.t_ns <= self.now_ns]

    def memo(self, kind: str, most: int = MEMO_MAX) -> dict[Any, Any]:
        """Return a store-wide cache of closed values; beyond ``most`` the oldest are evicted."""
        cache: dict[Any, Any] = self.store.memo.setdefault(kind, {})
        if self.store.live:
            most = min(most, max(LIVE_MEMO_MAX, 2 * len(self.ranks)))
        if len(cache) > most:
            for key in list(cache)[: len(cache) - most + most // _EVICTED]:
                del cache[key]
        return cache


@contextmanager
def as_they_are(processes: Sequence[Process]) -> Iterator[None]:
    """Keep data that arrives from the processes out of their tables while the context is open."""
    for process in processes:
        process.put_by.rests = True
    try:
        yield
    finally:
        for process in processes:
            process.put_by.rests = False


def per_view(function: Callable[Concatenate[View, P], R]) -> Callable[Concatenate[View, P], R]:
    """Compute ``function`` once per view and (hashable) arguments. The parts of one snapshot share
    its result, which must not be changed."""
    return _once(function, lambda view: view.local)


def per_look(function: Callable[Concatenate[View, P], R]) -> Callable[Concatenate[View, P], R]:
    """Compute ``function`` once per look, like `per_view`, and share the result with the views of a
    look at many ranks: it holds copies of tables' contents, which grow between two pieces."""
    return _once(function, lambda view: view.of_look)


def _once(
    function: Callable[Concatenate[View, P], R], values: Callable[[View], dict[Hashable, Any]]
) -> Callable[Concatenate[View, P], R]:
    @wraps(function)
    def kept(view: View, /, *args: P.args, **kwargs: P.kwargs) -> R:
        key, known = (function, args, *kwargs.items()), values(view)
        if key not in known:
            known[key] = function(view, *args, **kwargs)
        found: R = known[key]
        return found

    return kept


def per_store(
    key: Callable[Concatenate[View, P], Hashable], name: str = "", most: int = MEMO_MAX
) -> Callable[[Callable[Concatenate[View, P], R]], Callable[Concatenate[View, P], R]]:
    """Compute a function once per store and ``key`` of its arguments.

    For closed values, which depend on nothing outside the key, whatever the cursor. ``name`` is the
    cache's name, for functions made in one place; ``most`` as in ``View.memo``.
    """

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
