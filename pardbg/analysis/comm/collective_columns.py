"""Collectives of all ranks as columns.

`IssuedCollectives` has the ops that each rank issued, and which collectives all members issued
alike and completed: most need no further look, and for a thousand ranks an object per op and rank
is what takes long. `CollectiveColumns` has matched collectives, for callers that look at many and
make rows of few.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, Final

import numpy as np

from pardbg.analysis.base.asof import View, per_store
from pardbg.analysis.base.rank_columns import Columns
from pardbg.analysis.comm.op_rows import Arrival, CollectiveRow
from pardbg.analysis.comm.ops import ISSUED, UNKNOWN_OP, Issue, source_of, unknown_group
from pardbg.store.definitions import GroupDef, OpDef
from pardbg.store.process import Process
from pardbg.store.table import Array
from pardbg_agent import wire

TRUE_ENDS: Final = ("completed", "device")
"""Sources of times at which an op truly ended; a wait tells only when the host looked."""
BY_HOST: Final = ("completed", "waited")
"""Sources of times that are the host's."""
UNTIMED: Final = ("", "polled")
"""Sources without a time of completion: it is only known that the op completed, or that it did
before a poll."""

MAX_MEMBERS: Final = 4096
SAYS: Final = attrgetter("op", "reduce", "dtype", "root", "meets")
"""Fields of an op that must agree on all ranks."""
_PARTS: Final = {"issued_ns": "t0_ns", "done_ns": "done_ns"}
_DONE: Final = ("group_id", "seq", "t1_ns", "flags", "peer")
_FAILED, _SEND = int(wire.Flag.FAILED), int(wire.Flag.SEND)
_LATER: Final = 1 << 62
Facts = tuple[
    GroupDef, OpDef, int, int, int, tuple[Arrival, ...], int | None,
    tuple[int, int, int | None],
]  # fmt: skip
"""(group, op, seq, step, bytes, arrivals, last rank, (skew, wait, transfer) in ns)"""


class IssuedCollectives:
    """Collectives issued since ``start_ns``, one row per rank, sorted by group, sequence number and
    rank.

    In a run of several ranks, groups of one rank are left out: they exchange nothing, and
    frameworks call them out of habit.
    """

    def __init__(self, view: View, start_ns: int) -> None:
        self._view = view
        self._processes = list(view.ranks.values())
        self.groups: list[GroupDef] = []
        """Groups by their number in this object."""
        self._own_groups: list[GroupDef] = []
        self._uneven: set[int] = set()
        """Numbers of groups that ranks define differently."""
        self._newest: dict[tuple[int, int], int] = {}
        issued, done = self._columns(start_ns)
        self._number(issued)
        self._complete(issued, done)
        self._sort(issued)
        self._judge()

    def last(self, number: int | None) -> list[int]:
        """Return the newest collectives by first arrival, oldest first; all for None."""
        by_name = sorted(range(len(self.groups)), key=lambda g: _name(self.groups[g]))
        place = np.empty(len(by_name), np.int64)
        place[by_name] = np.arange(len(by_name))
        groups = self._rows["group"][self._starts]
        order = np.lexsort((self._rows["seq"][self._starts], place[groups], self.first_ns))
        newest: list[int] = (order if number is None else order[-number:]).tolist()
        return newest

    @property
    def steps(self) -> Array:
        """Return the step of each collective, on the rank that issued it first."""
        return self._rows["step"][self._first_row]

    def key(self, at: int) -> tuple[int, str, int]:
        """Return (epoch, group key, seq) of a collective."""
        row = self._starts[at]
        return (*_name(self.groups[self._rows["group"][row]]), int(self._rows["seq"][row]))

    def span(self, at: int) -> tuple[int, int]:
        """Return (first issue, last completion) of a collective, in ns."""
        return int(self.first_ns[at]), int(self._done_ns[at])

    def facts(self, wanted: Sequence[int]) -> Iterator[Facts]:
        """Yield the facts of collectives that all members issued alike."""
        at = np.array(wanted, np.int64)
        first, rows = self._first_row[at], self._rows
        kinds = np.where(self._one_kind[at], self._kind[self._starts[at]], self._kinds.index(""))
        columns = (
            rows["group"][first], rows["op"][first], rows["seq"][first], rows["step"][first],
            np.maximum(np.maximum(rows["a"][first], rows["b"][first]), 0),
            self._last_rank[at], self._last_ns[at] - self.first_ns[at], self._wait_ns[at], kinds,
            np.maximum(self._done_ns[at] - self._last_ns[at], 0), self._starts[at], self._ends[at],
        )  # fmt: skip
        times, ends, sources = (rows[name] for name in ("t0_ns", "done_ns", "source"))
        for number, op, seq, step, size, last, skew, wait, kind, transfer, begin, end in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            group = self.groups[number]
            named = map(self._sources.__getitem__, sources[begin:end].tolist())
            arrivals = tuple(map(
                Arrival, group.ranks, times[begin:end].tolist(), ends[begin:end].tolist(), named
            ))  # fmt: skip
            yield (
                group, self._ops[op], seq, step, size, arrivals,
                last if end - begin > 1 else None,
                (skew, wait, transfer if self._kinds[kind] else None),
            )  # fmt: skip

    def columns(self, wanted: Array) -> tuple[Columns, Columns, list[str]]:
        """Return (columns of collectives that all members issued alike, columns of each rank's part
        in them, names of ops), as in ``CollectiveColumns``."""
        first, rows, counts = self._first_row[wanted], self._rows, self._ends - self._starts
        timed = [kind not in UNTIMED for kind in self._kinds]
        known = np.array(timed)[self._kind[self._starts]]
        moving = np.maximum(self._done_ns - self._last_ns, 0)
        ends = np.array([source in TRUE_ENDS for source in self._sources], bool)[rows["source"]]
        by_host = np.array([source in BY_HOST for source in self._sources], bool)[rows["source"]]
        names = {name: i for i, name in enumerate(dict.fromkeys(op.op for op in self._ops))}
        of = {
            "step": rows["step"][first],
            "group": rows["group"][first],
            "op": np.array([names[op.op] for op in self._ops], np.int64)[rows["op"][first]],
            "bytes": np.maximum(np.maximum(rows["a"][first], rows["b"][first]), 0),
            "transfer_ns": np.where(self._one_kind & known, moving, -1)[wanted],
            "wait_ns": self._wait_ns[wanted],
            "last_rank": self._last_rank[wanted],
            "true_ends": np.logical_and.reduceat(ends, self._starts)[wanted],
            "by_host": np.logical_or.reduceat(by_host, self._starts)[wanted],
            "count": (counts := counts[wanted]),
        }
        begins = self._starts[wanted] - (np.cumsum(counts) - counts)
        part = np.arange(int(counts.sum())) + np.repeat(begins, counts)
        whose = {name: rows[column][part] for name, column in _PARTS.items()}
        return of, whose | {"rank": self._ranks[rows["who"][part]]}, list(names)

    def parts(self, wanted: Sequence[int]) -> dict[int, dict[int, Issue]]:
        """Return collective -> rank -> its issue, for collectives to be matched one by one."""
        names = (
            "who", "of", "seq", "op", "t0_ns", "done_ns", "has", "source", "a", "b", "peer",
            "flags", "step", "stage", "microbatch", "failed", "asked",
        )  # fmt: skip
        ranks, found = self._ranks.tolist(), {}
        for at in wanted:
            part = slice(self._starts[at], self._ends[at])
            columns = (self._rows[name][part].tolist() for name in names)
            found[at] = {
                ranks[place]: Issue(
                    ranks[place], self._own_groups[of], seq, self._ops[op], t0,
                    done if has else None, self._sources[source], a, b, peer, bool(flags & _SEND),
                    step, stage, mb, failed, asked < 0,
                )
                for place, of, seq, op, t0, done, has, source, a, b, peer, flags, step, stage, mb,
                failed, asked in zip(*columns, strict=True)
            }  # fmt: skip
        return found

    def cut(self, at: int) -> bool:
        """Return whether a rank may have issued its part of the collective before ``start_ns``;
        then the part is not among the rows, and the rank must not be called missing."""
        part = slice(self._starts[at], self._ends[at])
        group = self.groups[number := int(self._rows["group"][part][0])]
        if number in self._uneven or not 0 < len(group.ranks) <= MAX_MEMBERS:
            return True
        here = set(self._ranks[self._rows["who"][part]].tolist())
        absent = [r for r in group.ranks if r not in here and r in self._view.ranks]
        reached, seq = self.reached(at) if absent else {}, int(self._rows["seq"][part][0])
        return any(
            (reached[r] if r in reached else self._newest_seq(r, number)) >= seq for r in absent
        )

    def _newest_seq(self, rank: int, number: int) -> int:
        """Return a rank's newest sequence number in a group of which it has no rows here."""
        if (rank, number) not in self._newest:
            process, name = self._view.ranks[rank], _name(self.groups[number])
            table, visible = self._view.rows(process, "issue")
            of = np.flatnonzero(process.on_group(table.col("group_id")[:visible], name))
            none = _LATER if table.base else -1  # evicted rows are not known
            self._newest[rank, number] = int(table.col("seq")[of[-1]]) if len(of) else none
        return self._newest[rank, number]

    def reached(self, at: int) -> Mapping[int, int]:
        """Return rank -> newest sequence number in the collective's group."""
        group = self._rows["group"]
        part = slice(*group.searchsorted(group[self._starts[at]] + np.arange(2)))
        ranks, seqs = self._ranks[self._rows["who"][part]], self._rows["seq"][part]
        return dict(zip(ranks.tolist(), seqs.tolist(), strict=True))

    # ------------------------------------------------------------------ inside

    def _columns(self, start_ns: int) -> tuple[Columns, Columns]:
        """Return (ops issued since a time, ops completed since each rank's first such issue)."""
        ops, completed = self._view.all("issue"), self._view.all("done")
        begins = ops.before(start_ns)
        issued = ops.take(ISSUED, begins)
        since = np.full(len(begins), _LATER)  # ranks without issues are skipped
        first = np.flatnonzero(begins < ops.counts)
        since[first] = issued["t0_ns"][issued["who"].searchsorted(first)]
        done = completed.take(_DONE, completed.before(since))
        return _wide(issued), _wide(done)

    def _number(self, issued: Columns) -> None:
        """Replace each process's own ids by numbers that all ranks share."""
        names = _names(self._view)
        several = len(self._processes) > 1
        issued["own"] = issued["who"] << 16 | issued["group_id"]
        self._own, issued["of"] = np.unique(issued["own"], return_inverse=True)
        own = [names.group(own) for own in self._own.tolist()]
        self._own_groups = [group for group, _, _ in own]
        found, firsts, of = np.unique(
            [number for _, number, _ in own], return_index=True, return_inverse=True
        )
        self.groups = [self._own_groups[first] for first in firsts.tolist()]
        alike = np.array([definition for _, _, definition in own], np.int64)
        self._uneven = set(of[alike != alike[firsts][of]].tolist()) if len(found) else set()
        alone = np.array([several and len(group.ranks) == 1 for group in self._own_groups], bool)
        issued["group"] = np.where(alone, -1, of)[issued["of"]]
        codes, issued["op"] = np.unique(
            issued["who"] << 32 | issued["name_id"], return_inverse=True
        )
        ops = [names.op(code) for code in codes.tolist()]
        self._ops = [op for op, _ in ops]
        issued["says"] = np.array([says for _, says in ops], np.int64)[issued["op"]]

    def _complete(self, issued: Columns, done: Columns) -> None:
        """Add the newest completion of each op, by process, group and sequence number."""
        own = done["who"] << 16 | done["group_id"]
        place = np.minimum(self._own.searchsorted(own), max(len(self._own) - 1, 0))
        good = np.flatnonzero(self._own[place] == own) if len(own) else np.empty(0, np.int64)
        keys = place[good] << 32 | done["seq"][good]
        order = np.argsort(keys, kind="stable")
        wanted = self._own.searchsorted(issued["own"]) << 32 | issued["seq"]
        at = keys[order].searchsorted(wanted, side="right") - 1
        has = at >= 0
        has[has] = keys[order[at[has]]] == wanted[has]
        row = good[order[at[has]]]
        missing = {"t1_ns": -1, "flags": 0, "peer": wire.NONE}
        of = {name: np.full(len(has), none, np.int64) for name, none in missing.items()}
        for name, column in of.items():
            column[has] = done[name][row]
        issued["has"], issued["done_ns"] = has, of["t1_ns"]
        issued["failed"] = ((issued["flags"] | of["flags"]) & _FAILED) != 0
        issued["asked"] = issued["peer"]
        issued["peer"] = np.where(issued["peer"] < 0, of["peer"], issued["peer"])
        flags, issued["source"] = np.unique(of["flags"], return_inverse=True)
        self._sources = [source_of(flag) for flag in flags.tolist()]

    def _sort(self, issued: Columns) -> None:
        """Sort the rows, and merge two issues of a rank under one sequence number."""
        key = issued["group"] << 32 | issued["seq"]
        order = np.argsort(key, kind="stable")
        order = order[key[order] >= 0]
        key, place = key[order], issued["who"][order]
        new = np.ones(len(key), np.bool_)
        new[1:] = key[1:] != key[:-1]
        once = new.copy()
        once[1:] |= place[1:] != place[:-1]
        self._rows = {name: column[order[once]] for name, column in issued.items()}
        self._starts = np.flatnonzero(new[once])
        self._ends = np.append(self._starts, np.count_nonzero(once))[1:]
        self._ranks = np.array(list(self._view.ranks), np.int64)

    def _judge(self) -> None:
        """Set each collective's times, and whether all members issued it alike and completed it."""
        rows, starts, counts = self._rows, self._starts, self._ends - self._starts
        members = [() if g in self._uneven or len(group.ranks) > MAX_MEMBERS else group.ranks
                   for g, group in enumerate(self.groups)]  # fmt: skip
        sizes = np.array([len(ranks) for ranks in members], np.int64)
        flat = np.array([*(rank for ranks in members for rank in ranks), -1], np.int64)
        place = np.arange(len(rows["who"])) - np.repeat(starts, counts)
        place += (np.cumsum(sizes) - sizes)[rows["group"]]
        good = flat[np.minimum(place, len(flat) - 1)] == self._ranks[rows["who"]]
        good &= rows["has"] & ~rows["failed"]
        for name in ("a", "b", "peer", "says"):
            good &= rows[name] == np.repeat(rows[name][starts], counts)
        t0, done = rows["t0_ns"], rows["done_ns"]
        self._kinds = list(dict.fromkeys(("", *self._sources)))
        kind = np.array([self._kinds.index(s) for s in self._sources], np.int64)
        kind = kind[rows["source"]]
        self.alike = np.logical_and.reduceat(good, starts)
        self.alike &= counts == sizes[rows["group"][starts]]
        self.first_ns = np.minimum.reduceat(t0, starts)
        self._last_ns, self._done_ns = (np.maximum.reduceat(x, starts) for x in (t0, done))
        self._wait_ns = np.add.reduceat(np.repeat(self._last_ns, counts) - t0, starts)
        self._one_kind = np.minimum.reduceat(kind, starts) == np.maximum.reduceat(kind, starts)
        self._kind = kind
        firsts = np.flatnonzero(t0 == np.repeat(self.first_ns, counts))
        self._first_row = firsts[firsts.searchsorted(starts)]
        lasts = np.flatnonzero(t0 == np.repeat(self._last_ns, counts))
        last_row = lasts[lasts.searchsorted(self._ends) - 1]
        self._last_rank = self._ranks[rows["who"][last_row]]


class _Names:
    """Groups and ops by each rank's own ids, looked up once for all cursors."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes
        self._groups: dict[int, tuple[GroupDef, int, int]] = {}
        self._ops: dict[int, tuple[OpDef, int]] = {}
        self._numbers: dict[Any, int] = {}

    def group(self, own: int) -> tuple[GroupDef, int, int]:
        """Return (group, number of its name, of its definition) for rank's place << 16 | id."""
        found = self._groups.get(own)
        if found is None:
            process = self._processes[own >> 16]
            group = process.groups.get(own & 0xFFFF) or unknown_group(process, own & 0xFFFF)
            found = group, self._number(_name(group)), self._number(group)
            self._groups[own] = found
        return found

    def op(self, code: int) -> tuple[OpDef, int]:
        """Return (op, number of the fields ranks must agree on) for rank's place << 32 | id."""
        found = self._ops.get(code)
        if found is None:
            op = self._processes[code >> 32].ops.get(code & 0xFFFFFFFF, UNKNOWN_OP)
            found = self._ops[code] = op, self._number(SAYS(op))
        return found

    def _number(self, what: Hashable) -> int:
        return self._numbers.setdefault(what, len(self._numbers))


@per_store(lambda view: (view.revision, tuple(view.ranks.values())), most=4)
def _names(view: View) -> _Names:
    return _Names(list(view.ranks.values()))


def _name(group: GroupDef) -> tuple[int, str]:
    return group.epoch, group.key


def _wide(columns: Columns) -> Columns:
    return {name: column.astype(np.int64, copy=False) for name, column in columns.items()}


Make = Callable[[list[int]], Iterable[CollectiveRow]]
"""Function that makes the rows of the given collectives."""


@dataclass(frozen=True, eq=False)
class CollectiveColumns:
    """Matched collectives in order of step; within a step by first arrival."""

    of: Columns
    """Columns with a value per collective: ``step``, ``group`` (a number), ``op`` (its place in
    ``ops``), ``bytes``, ``transfer_ns`` (-1: not known), ``wait_ns``, ``last_rank``, ``true_ends``
    (on all ranks), ``by_host`` (on any), ``count`` (of ranks)."""
    parts: Columns
    """Columns with a value per collective and rank: ``rank``, ``issued_ns``, ``done_ns``."""
    ops: Sequence[str]
    make: Make

    def __len__(self) -> int:
        return len(self.of["step"])

    @cached_property
    def starts(self) -> Array:
        """Return the index of each collective's first part."""
        counts = self.of["count"]
        return np.cumsum(counts) - counts

    @cached_property
    def row_of(self) -> Array:
        """Return the index of each part's collective."""
        return np.repeat(np.arange(len(self)), self.of["count"])

    @cached_property
    def _rows_made(self) -> dict[int, CollectiveRow]:
        return {}

    def row(self, at: int) -> CollectiveRow:
        return self.rows([at])[0]

    def rows(self, wanted: Sequence[int]) -> list[CollectiveRow]:
        known = self._rows_made
        if new := [at for at in wanted if at not in known]:
            known.update(zip(new, self.make(new), strict=True))
        return [known[at] for at in wanted]

    def half_ns(self) -> Array:
        """Return the time at which half of the ranks had issued each collective, in ns."""
        ordered = np.lexsort((self.parts["issued_ns"], self.row_of))
        if not len(self):
            return ordered
        half: Array = self.parts["issued_ns"][ordered][self.starts + (self.of["count"] - 1) // 2]
        return half


def by_step(of: Columns, parts: Columns, ops: Sequence[str], make: Make) -> CollectiveColumns:
    """Return the collectives of at least two ranks, grouped by step in order of each step's first
    collective; otherwise in their order."""
    _, firsts, inverse = np.unique(of["step"], return_index=True, return_inverse=True)
    order = np.argsort(firsts[inverse], kind="stable")
    order = order[of["count"][order] > 1]
    counts = of["count"][order]
    begins = (np.cumsum(of["count"]) - of["count"])[order]
    at = np.arange(int(counts.sum())) + np.repeat(begins - (np.cumsum(counts) - counts), counts)
    return CollectiveColumns(
        {name: column[order] for name, column in of.items()},
        {name: column[at] for name, column in parts.items()},
        ops,
        lambda places: make(order[places].tolist()),
    )


def of_rows(steps: Sequence[int], rows: Sequence[CollectiveRow]) -> CollectiveColumns:
    """Return matched rows as columns; ``steps``: step to use for each row."""
    keys = {key: i for i, key in enumerate(dict.fromkeys(row.key for row in rows))}
    ops = {op: i for i, op in enumerate(dict.fromkeys(row.op for row in rows))}
    values = [
        (step, keys[row.key], ops[row.op], row.bytes,
         -1 if row.transfer_ns is None else row.transfer_ns, row.wait_ns or 0,
         -1 if row.last_rank is None else row.last_rank,
         all(a.source in TRUE_ENDS for a in row.arrivals),
         any(a.source in BY_HOST for a in row.arrivals), len(row.arrivals))
        for step, row in zip(steps, rows, strict=True)
    ]  # fmt: skip
    names = (
        "step", "group", "op", "bytes", "transfer_ns", "wait_ns", "last_rank", "true_ends",
        "by_host", "count",
    )  # fmt: skip
    parts = [a[:3] for row in rows for a in row.arrivals]
    return by_step(
        dict(zip(names, np.array(values, np.int64).reshape(-1, len(names)).T, strict=True)),
        dict(zip(("rank", "issued_ns", "done_ns"), np.array(parts, np.int64).reshape(-1, 3).T,
                 strict=True)),
        list(ops), lambda places: [rows[place] for place in places],
    )  # fmt: skip
