"""The wait graph across all groups and p2p (DESIGN §8): r → s if r is inside an op that s has not
issued.

A rank is inside an op if it issued it, it is not complete, and the rank computes nothing: its
stack, where one was taken, stands in an op; else no action of a pipeline runs on it. A rank that
posted a receive ahead and computes is not inside it. Ranks that have ended or are stopped wait for
no other rank.

Nodes that can be reached along the edges and have no edge out of themselves are to blame: one rank
(a sink), or several that wait for each other (a cycle: a deadlock).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pardbg.analysis.base.asof import View, per_store, per_view
from pardbg.analysis.base.graphs import reaching, terminal
from pardbg.analysis.base.holds import last_hold_end
from pardbg.analysis.base.leads import reached_ns
from pardbg.analysis.comm.ops import UNKNOWN_OP, done_table, group_label, is_unrecorded
from pardbg.analysis.hangs.standstill import on_their_way, seen
from pardbg.analysis.pipeline.pipelines import states
from pardbg.events import fields
from pardbg.store.definitions import GroupDef, OpDef
from pardbg.store.process import Process
from pardbg.store.table import Table
from pardbg.words import message
from pardbg_agent import wire

PATIENCE_NS: Final = 2_000_000_000
"""Time for which an op must be open to count as a wait, in ns."""
STILL_NS: Final = 1_000_000_000
"""Time in ns without progress after which a rank without a stack may stand in an op."""
_MOST_APART_NS: Final = 250_000_000
"""Maximum time by which an op may begin before STATE's figure, for an imprecise clock, in ns."""
_MOST_KEPT: Final = 1 << 15
TAIL: Final = 4096
"""Number of newest ops per rank among which the open ones are searched for."""
_SEND, _FAILED = int(wire.Flag.SEND), int(wire.Flag.FAILED)
_ISSUED: Final = ("issue", "issue_p2p", "call_begin")
_NEVER: Final = 1 << 62
_HOST_WAITS: Final = ("gloo", "mpi", "")
"""Backends in whose ops the host itself waits."""
_TELLING: Final = ("Store.", "new_group", "split_group", "torch.", "checkpoint.", "destroy", "rpc")
"""Prefixes of calls that are shown with their arguments."""
_ROOT_FIRST: Final = ("broadcast", "scatter")
"""Ops whose ranks wait for the root before any other rank."""


@dataclass(frozen=True, slots=True)
class PendingOp:
    """An op that its rank has issued and that is not complete."""

    rank: int
    group: GroupDef
    op: OpDef
    seq: int
    p2p: bool
    send: bool
    peer: int
    """Global rank of the peer of a message (-1: any rank), or of the root."""
    since_ns: int
    behind: int
    """Number of later ops that the rank issued on the same edge (point-to-point)."""
    name: str
    """Name of the op's group, with its ranks if another group has the same name."""

    @property
    def key(self) -> tuple[int, str]:
        return self.group.epoch, self.group.key

    @property
    def members(self) -> tuple[int, ...]:
        """Return the ranks that take part in the op."""
        return (self.rank, self.peer) if self.p2p else self.group.ranks

    @property
    def call(self) -> bool:
        """Return whether this is no op but a call that may block, such as new_group."""
        return self.group.backend == wire.CALLS

    @property
    def alone(self) -> bool:
        """Return whether this is a call that no other rank has to make."""
        return self.call and len(self.group.ranks) == 1

    @property
    def asks(self) -> int:
        """Return the rank that a call of torch.distributed.rpc waits for; -1: it is no RPC."""
        asked = self.op.root if self.call and self.op.op.startswith("rpc") else None
        return -1 if asked is None else asked

    @property
    def at_store(self) -> bool:
        """Return whether this waits for a store's key (``op.reduce``) that any rank may set."""
        return self.call and self.op.op.startswith("Store.")

    @property
    def text(self) -> str:
        if self.call:
            of = self.op.reduce if self.op.op.startswith(_TELLING) else ""
            return f"{self.op.op}({of})" if of else self.op.op
        if not self.p2p:
            return f"{self.op.op} {self.name} #{self.seq}"
        return message("send" if self.send else "recv", self.send, self.peer)


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank inside ``op``, with the ranks (``missing``) that have not issued it."""

    rank: int
    op: PendingOp
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Blame:
    """Ranks that others wait for: a single one, or several that wait for each other."""

    ranks: tuple[int, ...]
    victims: tuple[int, ...]
    """Ranks that wait for ``ranks``, indirectly too."""
    waits: tuple[Wait, ...]
    """Waits of the direct victims (of a cycle: of its ranks), the oldest first."""

    @property
    def cycle(self) -> bool:
        return len(self.ranks) > 1

    @property
    def since_ns(self) -> int:
        since = [wait.op.since_ns for wait in self.waits]
        return max(since) if self.cycle else min(since)


@dataclass(frozen=True, slots=True)
class WaitGraph:
    waits: tuple[Wait, ...]
    blames: tuple[Blame, ...]
    issued_by_all: tuple[tuple[PendingOp, ...], ...]
    """Open ops that each known rank has issued: collectives that are the newest of their group on
    each rank, and messages of ranks that stand in no other op."""
    alone: tuple[PendingOp, ...]
    """Open calls that no other rank has to make, or that lack no rank; the oldest first."""
    unsure: tuple[int, ...]
    """Ranks in ``waits`` without a stack that shows them in an op."""
    met: tuple[PendingOp, ...] = ()
    """Open sends and receives whose other side was issued too; the oldest first."""


@per_view
def wait_graph(view: View) -> WaitGraph:
    """Return the graph of ops open for PATIENCE_NS at the cursor; computed once per view."""
    opened: dict[int, list[PendingOp]] = {}
    for rank, process in _may_wait(view).items():
        if view.proc_end(process) is not None:
            continue
        ops = open_ops(view, rank, process)
        if ops:  # look up holds only if a rank waits
            latest = view.t_ns - PATIENCE_NS
            ops = [op for op in ops if max(op.since_ns, last_hold_end(view)) <= latest]
        if ops and not seen(view, rank).stopped:
            opened[rank] = ops
    waits: list[Wait] = []
    whole: dict[tuple[int | str, ...], list[PendingOp]] = {}
    alone, met = list[PendingOp](), list[PendingOp]()
    within = {rank: inside(view, rank, ops) for rank, ops in opened.items()}
    seen_inside = {rank for rank, yes in within.items() if yes and seen(view, rank).in_op}
    reached = _Reached(view, _at_store(opened))
    late = on_their_way(view) if opened else frozenset()
    for rank, ops in opened.items():
        messages: list[PendingOp] = []
        for op in ops:
            if late and not late.isdisjoint((op.peer,) if op.p2p else op.group.ranks):
                continue
            missing = _missing(view, op, reached)
            if missing and within[rank]:
                waits.append(Wait(rank, op, missing))
            elif op.alone and not missing:
                alone.append(op)
            elif op.p2p and not missing:
                messages.append(op)
            elif not op.p2p and not missing and reached.collectives(rank, op.group) == op.seq + 1:
                whole.setdefault((*op.key, op.seq), []).append(op)
        met += messages
        on_host = within[rank] and all(op.group.backend in _HOST_WAITS for op in ops)
        for op in messages if on_host and len(messages) == len(ops) else ():
            if _is_met(view, op, reached):
                whole.setdefault((*op.key, *sorted(op.members)), []).append(op)
    anybody = [op for op in met if op.peer < 0 and within[op.rank]]
    standing = {op.rank for op in anybody} | {wait.rank for wait in waits}
    of_anybody = (Wait(op.rank, op, tuple({*op.group.ranks} - {op.rank})) for op in anybody)
    waits += [wait for wait in of_anybody if standing.issuperset(wait.missing)]  # nobody will send
    unsure = tuple(sorted({w.rank for w in waits} - seen_inside))
    return WaitGraph(
        tuple(waits), tuple(_blames(waits)), tuple(tuple(ops) for ops in whole.values()),
        tuple(sorted(alone, key=lambda op: op.since_ns)), unsure,
        tuple(sorted(met, key=lambda op: op.since_ns)),
    )  # fmt: skip


def _at_store(opened: Mapping[int, Sequence[PendingOp]]) -> dict[str, set[int]]:
    """Return key -> ranks that wait for it at the store."""
    found: dict[str, set[int]] = {}
    for rank, ops in opened.items():
        for op in ops:
            if op.at_store:
                found.setdefault(op.op.reduce, set()).add(rank)
    return found


def inside(view: View, rank: int, ops: Iterable[PendingOp]) -> bool:
    """Return whether the rank computes nothing: it stands in one of its open ops.
    On a device the host does not wait in an op but where it next needs a result, so there the
    stack does not say; that the rank stands still does, or its device where its times are known.
    """
    now, on_host = seen(view, rank), all(op.group.backend in _HOST_WAITS for op in ops)
    device_ns = None if on_host else reached_ns(view, rank)
    if device_ns is not None:
        return view.t_ns - device_ns >= STILL_NS
    if now.frames and on_host:
        return now.in_op
    return not now.action and view.t_ns - now.moved_ns >= STILL_NS


# -- open ops


def open_ops(view: View, rank: int, process: Process, age_ns: int = PATIENCE_NS) -> list[PendingOp]:
    """Return the rank's ops that are issued and not complete, oldest first; none where the oldest
    is open for less than ``age_ns``.
    STATE knows how many are open and since when the oldest is; records know which. An op whose
    Work was dropped without a wait has no completion record: it is not open any more.
    """
    said = states(view).get(process.proc)
    since = 0
    if said is not None:
        since = fields.integer(said, "open_since_ns", 0)
        if not fields.integer(said, "open", 0) or view.t_ns - since < age_ns:
            return []  # the usual case, and it costs nothing
        since -= min(process.clocks.apart_ns(since), _MOST_APART_NS)
    names = (name for issued in _ISSUED for name in (issued, done_table(issued)))
    known = view.memo("open ops", _MOST_KEPT)
    of = since, _stamp(view, process, *names)
    kept: tuple[object, list[PendingOp]] = known.get(process.proc, (None, []))
    if kept[0] != of:
        found = [op for name in _ISSUED for op in _open_in(view, rank, process, name, since)]
        kept = known[process.proc] = of, sorted(found, key=lambda op: op.since_ns)
    return list(kept[1])


def _stamp(view: View, process: Process, *names: str) -> tuple[object, ...]:
    """Return a value that changes when the process has more of these records, or defines more."""
    rows = (view.rows(process, name) for name in names)
    numbers = (number for table, visible in rows for number in (table.base, visible))
    return len(process.groups), len(process.ops), view.store.part, *numbers


def _may_wait(view: View) -> dict[int, Process]:
    """Return the ranks whose STATE has open ops, or, without STATE, whose ops issued PATIENCE_NS
    ago were not all complete at the cursor."""
    said, ranks = states(view), view.ranks
    told = [said.get(process.proc) for process in ranks.values()]
    may = np.array([bool(one and fields.integer(one, "open", 0)) for one in told], np.bool_)
    silent, of = np.flatnonzero([one is None for one in told]), np.array([*ranks.values(), None])
    for name in _ISSUED if len(silent) else ():
        tables = view.joined(name)
        until_ns = np.full(len(ranks), view.t_ns - PATIENCE_NS)
        if name == "call_begin":  # by its end, not its begin
            until_ns += [table.longest_ns for table in tables.tables]
        old = tables.before(until_ns, "right") if tables.sizes.any() else tables.sizes
        some = silent[old[silent] > 0]
        rows = old[some] - 1
        if len(silent) == len(ranks):
            by = _all_complete_by(view, name)[tables.starts[some] + rows]
        else:
            own = [_complete_by(view, silent_one, name) for silent_one in of[some]]
            by = np.array([times[row] for times, row in zip(own, rows, strict=True)], np.int64)
        may[some] |= by > view.t_ns
    return {rank: ranks[rank] for rank, yes in zip(ranks, may.tolist(), strict=True) if yes}


@per_store(lambda view, name: (view.revision, tuple(view.ranks.values()), name), most=4)
def _all_complete_by(view: View, name: str) -> NDArray[np.int64]:
    """Return `_complete_by` of all ranks, concatenated."""
    return np.concatenate([_complete_by(view, one, name) for one in view.ranks.values()])


def _complete_by(view: View, process: Process, name: str) -> NDArray[np.int64]:
    """Return when all ops up to each row of a table of issued ops had completed or failed, in ns.
    It is as long as the table: only the newest is kept, per process."""
    kept: dict[tuple[str, str], tuple[Hashable, NDArray[np.int64]]] = view.store.memo.setdefault(
        "complete by", {}
    )
    at = process.proc, name
    tables = process.table(name), process.table(done_table(name))
    of = tuple((table.base, len(table)) for table in tables)
    if at not in kept or kept[at][0] != of:
        kept[at] = of, _completed(*tables)
    return kept[at][1]


def _completed(table: Table, done: Table) -> NDArray[np.int64]:
    ended = _keys(done.col("group_id"), done.col("seq"))
    order = np.argsort(ended, kind="stable")
    keys = _keys(table.col("group_id"), table.col("seq"))
    at = ended[order].searchsorted(keys)
    has = at < len(order)
    has[has] = ended[order[at[has]]] == keys[has]
    times = np.full(len(keys), _NEVER)
    times[has] = done.when[order[at[has]]]
    times[times < table.when] = _NEVER
    times[(table.col("flags") & _FAILED) != 0] = 0
    return np.maximum.accumulate(times)


def _open_in(view: View, rank: int, process: Process, name: str, since: int) -> list[PendingOp]:
    table, visible = view.rows(process, name)
    lo = max(visible - TAIL, int(np.searchsorted(table.when[:visible], since, side="left")))
    if lo >= visible:
        return []
    part = slice(lo, visible)
    done, done_visible = view.rows(process, done_table(name))
    first = int(np.searchsorted(done.when[:done_visible], int(table.when[lo]), side="left"))
    ended = _keys(done.col("group_id")[first:done_visible], done.col("seq")[first:done_visible])
    keys = _keys(table.col("group_id")[part], table.col("seq")[part])
    failed = (table.col("flags")[part] & _FAILED) != 0
    rows = lo + np.flatnonzero(~np.isin(keys, ended) & ~failed)
    columns = ("group_id", "seq", "name_id", "flags", "peer", "t0_ns")
    found = []
    for gid, seq, name_id, flags, peer, t0 in table.tuples(rows, *columns):
        group = process.groups.get(gid)
        if group is None:
            continue
        op = process.ops.get(name_id, UNKNOWN_OP)
        p2p = name == "issue_p2p"
        root = op.root if op.root is not None and not p2p else peer
        label = group_label(view, group)
        found.append(PendingOp(rank, group, op, seq, p2p, bool(flags & _SEND), root, t0, 0, label))
    return _with_behind(view, process, found) if name == "issue_p2p" else found


def _keys(groups: np.ndarray, seqs: np.ndarray) -> np.ndarray:
    return (groups.astype(np.int64) << 32) | seqs.astype(np.int64)


def _with_behind(view: View, process: Process, ops: list[PendingOp]) -> list[PendingOp]:
    """Return the ops with the number of later ops that the rank issued on the same edge."""
    if not ops:
        return []
    table, visible = view.rows(process, "issue_p2p")
    tail, columns = slice(max(0, visible - TAIL), visible), ("group_id", "name_id", "flags", "peer")
    rows = list(table.tuples(tail, *columns, "t0_ns"))
    made = []
    for op in ops:
        behind = sum(
            t0 > op.since_ns
            and peer == op.peer
            and bool(flags & _SEND) == op.send
            and process.ops.get(name_id, UNKNOWN_OP).tag == op.op.tag
            and _is(process, gid, op.group)
            for gid, name_id, flags, peer, t0 in rows
        )
        made.append(replace(op, behind=behind))
    return made


def _is(process: Process, group_id: int, group: GroupDef) -> bool:
    known = process.groups.get(group_id)
    return known is not None and (known.epoch, known.key) == (group.epoch, group.key)


# -- who has issued what


class _Reached:
    """Counts of the ops that each rank has issued, on a group and on a point-to-point edge."""

    def __init__(self, view: View, at_store: Mapping[str, set[int]]) -> None:
        self._view = view
        self._at_store = at_store
        self._groups: dict[tuple[int, int, str], int] = {}
        self._absent: dict[tuple[int, str, int], tuple[int, ...]] = {}

    def collectives(self, rank: int, group: GroupDef) -> int:
        """Return the number of the group's next collective on ``rank``."""
        key = (rank, group.epoch, group.key)
        found = self._groups.get(key)
        if found is None:
            process, known = self._view.ranks[rank], self._view.memo("reached", _MOST_KEPT)
            of = _stamp(self._view, process, "issue", "call_begin")
            at = (process.proc, *key)
            if known.get(at, (None,))[0] != of:
                known[at] = of, self._count_collectives(rank, group)
            found = self._groups[key] = known[at][1]
        return found

    def absent(self, group: GroupDef, seq: int) -> tuple[int, ...]:
        """Return the known ranks of the group that did not issue its collective ``seq``."""
        key = (group.epoch, group.key, seq)
        found = self._absent.get(key)
        if found is None:
            known = (
                rank for rank in group.ranks
                if rank in self._view.ranks
                and not is_unrecorded(self._view.ranks[rank], self._view.t_ns, self._view.t_ns)
            )  # fmt: skip
            found = tuple(rank for rank in known if self.collectives(rank, group) <= seq)
            self._absent[key] = found
        return found

    def who_may_set(self, key: str) -> tuple[int, ...]:
        """Return ranks that do not wait for a key themselves: the live ones, if there are any."""
        waiting = self._at_store.get(key, set())
        others = [rank for rank in self._view.ranks if rank not in waiting]
        view = self._view
        living = [rank for rank in others if view.proc_end(view.ranks[rank]) is None]
        return tuple(living or others)

    def _count_collectives(self, rank: int, group: GroupDef) -> int:
        process = self._view.ranks[rank]
        name = "call_begin" if group.backend == wire.CALLS else "issue"
        table, visible = self._view.rows(process, name)
        lo = max(0, visible - TAIL)
        gids = table.col("group_id")[lo:visible]
        seqs = table.col("seq")[lo:visible][process.on_group(gids, (group.epoch, group.key))]
        if len(seqs) or name == "call_begin":
            return int(seqs.max()) + 1 if len(seqs) else 0
        return sum(
            number
            for op, number, _ in process.totals("issue").as_of(visible)
            if _is(process, op.group_id, group)
        )

    def edge(self, rank: int, group: GroupDef, peer: int, tag: int, send: bool) -> int | None:
        """Return the number of ops that ``rank`` issued on the edge; None if records were lost."""
        process = self._view.ranks[rank]
        now = self._view.t_ns
        if process.lost(now) or process.missed_before or process.undefined_groups:
            return None
        if process.unrecorded_since(0, now) or process.totals("issue_p2p").overflowed:
            return None
        _, visible = self._view.rows(process, "issue_p2p")
        return sum(
            number
            for op, number, _ in process.totals("issue_p2p").as_of(visible)
            if op.send == send
            and op.peer in ((peer,) if send else (peer, -1))
            and process.ops.get(op.name_id, UNKNOWN_OP).tag == tag
            and _is(process, op.group_id, group)
        )


def _missing(view: View, op: PendingOp, reached: _Reached) -> tuple[int, ...]:
    """Return ranks that have not issued the op; for a point-to-point op, its other side."""
    if op.p2p:
        return (op.peer,) if _is_met(view, op, reached) is False else ()
    if op.at_store:
        return reached.who_may_set(op.op.reduce)
    absent = reached.absent(op.group, op.seq)
    return (op.peer,) if op.op.op in _ROOT_FIRST and op.peer in absent else absent


def _is_met(view: View, op: PendingOp, reached: _Reached) -> bool | None:
    """Return whether the other side of a message was issued; None: not known."""
    if op.peer < 0 or op.peer not in view.ranks or op.peer == op.rank:
        return None
    mine = reached.edge(op.rank, op.group, op.peer, op.op.tag, op.send)
    theirs = reached.edge(op.peer, op.group, op.rank, op.op.tag, not op.send)
    return None if mine is None or theirs is None else theirs > mine - op.behind - 1


# -- who is to blame


def _blames(waits: Iterable[Wait]) -> Iterable[Blame]:
    edges: dict[int, set[int]] = {}
    for wait in waits:
        edges.setdefault(wait.rank, set()).update(wait.missing)
    for ranks in terminal(edges):
        victims = reaching(edges, ranks)
        if len(ranks) == 1:
            direct = [w for w in waits if ranks[0] in w.missing]
        else:
            direct = [w for w in waits if w.rank in ranks and set(w.missing) & set(ranks)]
        direct.sort(key=lambda wait: wait.op.since_ns)
        yield Blame(ranks, victims, tuple(direct))
