"""Directed traffic between ranks: observed for p2p and all_to_all, modelled for other collectives
as rings, or as stars at a root (broadcast, scatter, reduce, gather)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.steps import last_step_rows, step_rows
from pardbg.analysis.comm.matching import busbw_factor, collectives
from pardbg.analysis.comm.nccl_view import NcclView, nccl_view, ring_order
from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.comm.ops import UNKNOWN_OP
from pardbg.analysis.comm.p2p import RingStep, p2p_rows, ring_step
from pardbg.store.definitions import GroupDef
from pardbg.store.process import Process
from pardbg.store.totals import OTHER
from pardbg.words import UNKNOWN
from pardbg_agent import wire


@dataclass(frozen=True, slots=True)
class GroupView:
    key: str
    name: str
    axis: str | None
    ranks: tuple[int, ...]
    backend: str
    num_ops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Edge:
    """Traffic from one rank to another."""

    src: int
    dst: int
    bytes: int
    rate_bps: float
    """Rate in bytes per second over the last window (``TrafficView.window_ns``)."""
    source: Literal["observed", "modelled"]
    num_ops: int
    active: bool
    """Whether an op is in flight on the edge at the cursor."""
    label: str = ""
    """Label of the edge's newest message, as ``P2PRow.label``."""
    course: tuple[float, ...] = ()
    """Bytes per second in each `BINS`-th of the window, oldest first; empty: not known."""


@dataclass(frozen=True, slots=True)
class StepOp:
    """One kind of op on one axis of the mesh in a step, as means over steps and groups."""

    axis: str
    op: str
    groups: tuple[tuple[int, ...], ...]
    number: float
    """Number of ops of a group; for messages, the number that a rank sends."""
    payload: float
    """Bytes of all ops (the larger of input and output); for messages, bytes that a rank sends."""
    sent: float
    """Bytes that a rank sends: observed for messages, else by a ring, or the mean of a star."""
    source: Literal["observed", "modelled"]


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """Traffic of a training step, as the mean of its newest complete steps."""

    first: int
    last: int
    ops: tuple[StepOp, ...]
    """Kinds of ops, the one that sends most first."""
    edges: tuple[tuple[int, int, str, float], ...]
    """(sender, receiver, source, bytes per step)"""


@dataclass(frozen=True, slots=True)
class TrafficView:
    window_ns: int
    edges: tuple[Edge, ...]
    groups: tuple[GroupView, ...]
    ops: tuple[tuple[str, str, int, int, float | None], ...]
    """(group, op, number, bytes, median busbw in GB/s) per kind of op, largest first."""
    ring: RingStep | None = None
    step: StepTraffic | None = None
    """Traffic of a step; None: no step has ended on every rank, or ops are known only as sums."""
    nccl: NcclView | None = None
    """NCCL's report on its communicators; None: there is none."""


Over = int | Mapping[str, tuple[int, int]]
"""Begin in ns of bytes counted apart, over all of the run; or process -> (begin, end) counted."""
WINDOW_NS: Final = 2_000_000_000
STEPS: Final = 8
"""Maximum number of newest complete steps averaged for the traffic of a step."""
BINS: Final = 24
_MOST_DRAWN: Final = 64
"""Maximum number of ranks of a group whose edges have a course."""
_FROM_ROOT: Final = ("broadcast", "scatter")
_TO_ROOT: Final = ("reduce", "gather")
_SHARED: Final = ("scatter", "gather")
_RINGS: Final = ("all_reduce", "all_gather", "reduce_scatter")


@dataclass(slots=True)
class _Sum:
    num_ops: int = 0
    num_bytes: float = 0.0
    recent_bytes: float = 0.0
    active: bool = False

    def add(self, number: int, num_bytes: float, recent_bytes: float) -> None:
        self.num_ops += number
        self.num_bytes += num_bytes
        self.recent_bytes += recent_bytes


@dataclass(slots=True)
class _Sums:
    edges: dict[tuple[int, int, str], _Sum] = field(default_factory=lambda: defaultdict(_Sum))
    ops: dict[tuple[str, str, str], _Sum] = field(default_factory=lambda: defaultdict(_Sum))
    """(group key, group name, op) -> its sum"""


def traffic_view(view: View) -> TrafficView:
    """Return the whole run's traffic up to the cursor; rates are over the last ``WINDOW_NS``."""
    sums = _Sums()
    recent_row = view.t_ns - WINDOW_NS
    _add_p2p(view, sums, recent_row)
    _add_parts(view, sums, recent_row)
    _add_collectives(view, sums, recent_row)
    _add_summed(view, sums, recent_row)
    _add_other(view, sums)
    _mark_active(view, sums)
    seconds = min(WINDOW_NS, max(view.t_ns - view.begin_ns, 1)) / 1e9
    messages = p2p_rows(view)
    labels = {(row.src, row.dst): row.label for row in messages}
    rows = collectives(view)
    courses = _courses(view, rows)
    edges = tuple(
        Edge(
            src, dst, round(s.num_bytes), s.recent_bytes / seconds,
            "observed" if source == "observed" else "modelled", s.num_ops, s.active,
            labels.get((src, dst), "") if source == "observed" else "",
            tuple(courses[src, dst, source].tolist()) if (src, dst, source) in courses else (),
        )
        for (src, dst, source), s in sorted(sums.edges.items())
    )  # fmt: skip
    busbw = _median_busbw(rows)
    ops = tuple(
        (name, op, s.num_ops, round(s.num_bytes), busbw.get((name, op)))
        for (_, name, op), s in sorted(sums.ops.items(), key=lambda item: -item[1].num_bytes)
    )
    nccl = nccl_view(view) or None
    return TrafficView(
        WINDOW_NS, edges, _groups(view, sums), ops, ring_step(messages), step_traffic(view), nccl
    )


def step_traffic(view: View) -> StepTraffic | None:
    """Return the traffic of a step, from the newest steps that ended on every rank. A run's first
    step is left out if there are others: it distributes parameters and shapes."""
    steps = [row.step for row in step_rows(view)][-STEPS - 1 :]
    if not steps or view.having("op_sum"):
        return None
    first, last = steps[1 if len(steps) > 1 else 0], steps[-1]
    spans: dict[str, tuple[int, int]] = {}
    for process in view.ranks.values():
        rows = {step: (t0, t1) for step, t0, t1 in last_step_rows(view, process, STEPS + 4)}
        if first in rows and last in rows:
            spans[process.proc] = rows[first][0], rows[last][1]
    sums, parts, number = _Sums(), _Sums(), last - first + 1
    _add_p2p(view, sums, spans)
    messages = frozenset(sums.ops)
    _add_collectives(view, sums, spans)
    _add_parts(view, parts, spans)
    members = {key: group.ranks for (_, key), group in view.store.groups.items()}
    ops = tuple(
        _step_op(members, axis, op, kinds, messages, parts, number)
        for (axis, op), kinds in _by_axis(sums).items()
    )
    edges: dict[tuple[int, int, str], float] = defaultdict(float)
    for found in (sums, parts):
        for pair, part in found.edges.items():
            edges[pair] += part.num_bytes / number
    return StepTraffic(
        first, last, tuple(sorted(ops, key=lambda one: (-one.sent, one.axis, one.op))),
        tuple((*pair, size) for pair, size in sorted(edges.items())),
    )  # fmt: skip


def _by_axis(sums: _Sums) -> dict[tuple[str, str], dict[tuple[str, str, str], _Sum]]:
    """Return (axis, op) -> (group key, axis, op) -> sum, for each of the axis's groups."""
    kinds: dict[tuple[str, str], dict[tuple[str, str, str], _Sum]] = defaultdict(dict)
    for (key, axis, op), part in sums.ops.items():
        if key:
            kinds[axis, op][key, axis, op] = part
    return kinds


def _step_op(
    members: Mapping[str, tuple[int, ...]], axis: str, op: str,
    kinds: Mapping[tuple[str, str, str], _Sum], messages: frozenset[tuple[str, str, str]],
    parts: _Sums, steps: int,
) -> StepOp:  # fmt: skip
    """Return one kind of op over all groups of an axis."""
    groups = tuple(sorted(members.get(key, ()) for key, _, _ in kinds))
    ranks, message = sum(map(len, groups)), messages.issuperset(kinds)
    many = max(1, ranks if message else len(groups)) * steps
    payload = sum(part.num_bytes for part in kinds.values()) / many
    seen = sum(
        part.num_bytes for (src, dst, _), part in parts.edges.items()
        if src != dst and any(src in group and dst in group for group in groups)
    ) if op == "all_to_all" else 0.0  # fmt: skip
    sent = (
        payload
        if message
        else seen / max(1, ranks) / steps or payload * sent_of(op, max(map(len, groups)))
    )
    return StepOp(
        axis, op, groups, sum(part.num_ops for part in kinds.values()) / many, payload, sent,
        "observed" if message or seen else "modelled",
    )  # fmt: skip


def sent_of(op: str, num_ranks: int) -> float:
    """Return the share of an op's bytes that a rank sends: 2(n-1)/n for all_reduce; else (n-1)/n,
    also as the mean of a star, whose root sends or receives n-1 times as much."""
    factor = busbw_factor(op, num_ranks)
    if factor is None:
        return 0.0
    return factor if op in _RINGS else min(factor, (num_ranks - 1) / num_ranks)


def ring_bytes(op: str, num_bytes: int, num_ranks: int) -> float:
    """Return the bytes per ring link: 2(n-1)/n · S for all_reduce, (n-1)/n · S for all_gather and
    reduce_scatter, 0 for ops without a model. S: the larger of input and output."""
    factor = busbw_factor(op, num_ranks) if op in _RINGS else None
    return (factor or 0.0) * num_bytes


def _courses(
    view: View, rows: Sequence[CollectiveRow]
) -> dict[tuple[int, int, str], NDArray[np.float64]]:
    """Return edge -> rates over the window, in bytes/s; rings' shares at the last arrival."""
    begin, each = view.t_ns - WINDOW_NS, WINDOW_NS // BINS
    found: dict[tuple[int, int, str], NDArray[np.float64]] = defaultdict(lambda: np.zeros(BINS))
    for name in ("issue_p2p", "part"):
        for rank, process in view.having(name):
            table, visible = view.rows(process, name)
            tail = slice(int(table.when[:visible].searchsorted(begin)), visible)
            if tail.start == visible:
                continue
            when, peers, sizes = table.when[tail], table.col("peer")[tail], table.col("a")[tail]
            counts = peers >= 0
            if name == "issue_p2p":
                counts &= (table.col("flags")[tail] & int(wire.Flag.SEND)) != 0
            at = np.clip((when - begin) // each, 0, BINS - 1)
            for peer in np.unique(peers[counts]).tolist():
                own = counts & (peers == peer)
                found[rank, peer, "observed"] += np.bincount(at[own], sizes[own], BINS)
    for row in rows:
        last = max((a.issued_ns or 0 for a in row.arrivals), default=0)
        ranks = tuple(a.rank for a in row.arrivals)
        ranks = ring_order(view, ranks) or ranks
        size = ring_bytes(row.op, row.bytes, len(ranks))
        if size > 0 and last >= begin and len(ranks) <= _MOST_DRAWN:
            for src, dst in zip(ranks, (*ranks[1:], ranks[0]), strict=True):
                found[src, dst, "modelled"][min(BINS - 1, (last - begin) // each)] += size
    return {edge: sizes * (1e9 / each) for edge, sizes in found.items()}


def _as_of(
    view: View, process: Process, name: str, over: Over
) -> Iterable[tuple[int, int, bool, int, int, int, int]]:
    """Yield (name id, group id, send, peer, number, bytes, recent bytes) per kind of op; over a
    span of time, only ops issued in it."""
    table, visible = view.rows(process, name)
    if not table.base + visible:
        return
    begin_ns, end_ns = (over, None) if isinstance(over, int) else over.get(process.proc, (0, 0))
    before = int(table.when[:visible].searchsorted(begin_ns, side="left"))
    if end_ns is not None:
        visible = int(table.when[:visible].searchsorted(end_ns, side="right"))
    totals = process.totals(name)
    earlier = {key: (number, size) for key, number, size in totals.as_of(before)}
    for key, number, size in totals.as_of(visible):
        if key == OTHER:
            continue
        number_before, size_before = earlier.get(key, (0, 0))
        recent = size - size_before
        if end_ns is not None:
            number, size = number - number_before, recent
        if number:
            yield key.name_id, key.group_id, key.send, key.peer, number, size, recent


def _add_p2p(view: View, sums: _Sums, over: Over) -> None:
    """Add p2p edges, from the sender's records, or the receiver's if the sender is unknown."""
    seen: dict[tuple[int, int, bool], _Sum] = defaultdict(_Sum)
    for rank, process in view.having("issue_p2p"):
        for name_id, gid, send, peer, number, size, recent in _as_of(
            view, process, "issue_p2p", over
        ):
            if peer < 0:
                continue
            edge = (rank, peer, True) if send else (peer, rank, False)
            parts = [seen[edge]]
            group = process.groups.get(gid)
            if group is not None and send:
                op = process.ops.get(name_id)
                name = "send" if op is None else op.op
                parts.append(sums.ops[group.key, group.axis or group.name, name])
            for part in parts:
                part.add(number, size, recent)
    for (src, dst, sent), part in seen.items():
        if sent or (src, dst, True) not in seen:
            sums.edges[src, dst, "observed"] = part


def _add_parts(view: View, sums: _Sums, over: Over) -> None:
    """Add bytes of all_to_alls between each two ranks, which routers decide, not rings."""
    for rank, process in view.having("part"):
        for _, _, _, peer, number, size, recent in _as_of(view, process, "part", over):
            if size:  # else the peer's part alone has bytes
                sums.edges[rank, peer, "observed"].add(number, size, recent)


def _add_collectives(view: View, sums: _Sums, over: Over) -> None:
    """Add each group's ops once, as issued by its lowest known member."""
    for group in list(view.store.groups.values()):
        member = _witness(view, group)
        if member is None:
            continue
        process = view.ranks[member]
        ids = {gid for gid, g in process.groups.items() if g.key == group.key}
        for name_id, gid, _, _, number, size, recent in _as_of(view, process, "issue", over):
            if gid not in ids:
                continue
            op = process.ops.get(name_id, UNKNOWN_OP)
            sums.ops[group.key, group.axis or group.name, op.op].add(number, size, recent)
            _add_ring(view, sums, group.ranks, op.op, number, size, recent)
            if op.root is not None and op.root in group.ranks:
                at_root = member == op.root
                _add_star(sums, group.ranks, op.op, op.root, at_root, number, size, recent)


def _add_other(view: View, sums: _Sums) -> None:
    """Add a row for ops beyond the kinds (op, group, peer, tag) that a process counts apart."""
    for name in ("issue", "issue_p2p"):
        for _, process in view.having(name):
            totals, visible = process.totals(name), view.visible(process, name)
            for key, number, size in totals.as_of(visible) if totals.may_overflow(visible) else ():
                if key == OTHER:
                    part = sums.ops["", UNKNOWN, "other ops"]
                    part.num_ops += number
                    part.num_bytes += size


def _add_summed(view: View, sums: _Sums, over: Over) -> None:
    """Add ops that level summary sums per step: collectives once a group, sends alone."""
    for rank, process in view.having("op_sum"):
        for name_id, gid, send, _, number, size, recent in _as_of(view, process, "op_sum", over):
            group, name = process.groups.get(gid), process.ops.get(name_id, UNKNOWN_OP).op
            if group is None or (not send and (name == "recv" or _witness(view, group) != rank)):
                continue
            sums.ops[group.key, group.axis or group.name, name].add(number, size, recent)
            if not send:
                _add_ring(view, sums, group.ranks, name, number, size, recent)


def _witness(view: View, group: GroupDef) -> int | None:
    known = [
        rank for rank in group.ranks if rank in view.ranks and view.ranks[rank].epoch == group.epoch
    ]
    return min(known, default=None)


def _add_ring(
    view: View, sums: _Sums, ranks: tuple[int, ...], op: str, number: int, size: int, recent: int
) -> None:
    """Add the shares of a ring's links, in the order of NCCL's first ring if it was printed."""
    ranks = ring_order(view, ranks) or ranks
    per_link = ring_bytes(op, size, len(ranks))
    if per_link <= 0 or len(ranks) > 1024:
        return
    for src, dst in zip(ranks, (*ranks[1:], ranks[0]), strict=True):
        sums.edges[src, dst, "modelled"].add(number, per_link, ring_bytes(op, recent, len(ranks)))


def _add_star(
    sums: _Sums, ranks: Sequence[int], op: str, root: int, at_root: bool, number: int, size: int,
    recent: int,
) -> None:  # fmt: skip
    """Add traffic between the root and each other rank: all bytes (broadcast, reduce), or a rank's
    share (scatter, gather). ``size`` was counted on the root or on another rank."""
    if op not in _FROM_ROOT + _TO_ROOT or len(ranks) > 1024:
        return
    share = len(ranks) if at_root and op in _SHARED else 1
    for other in ranks:
        if other != root:
            src, dst = (root, other) if op in _FROM_ROOT else (other, root)
            sums.edges[src, dst, "modelled"].add(number, size / share, recent / share)


def _mark_active(view: View, sums: _Sums) -> None:
    for row in p2p_rows(view):
        if row.send_ns is not None and row.done_ns is None and row.verdict == "incomplete":
            edge = sums.edges.get((row.src, row.dst, "observed"))
            if edge is not None and view.run_end is None:
                edge.active = True
    for collective in collectives(view):
        if collective.verdict != "incomplete" or collective.missing or view.run_end is not None:
            continue
        ranks = tuple(arrival.rank for arrival in collective.arrivals)
        ranks = ring_order(view, ranks) or ranks
        for src, dst in zip(ranks, (*ranks[1:], ranks[0]), strict=True):
            edge = sums.edges.get((src, dst, "modelled"))
            if edge is not None:
                edge.active = True


def _groups(view: View, sums: _Sums) -> tuple[GroupView, ...]:
    views = []
    parts_of = defaultdict(list)
    for (key, _, _), part in sums.ops.items():
        parts_of[key].append(part)
    for (epoch, key), group in view.store.groups.items():
        if epoch == view.epoch:
            parts = parts_of[key]
            number, size = sum(s.num_ops for s in parts), round(sum(s.num_bytes for s in parts))
            name = group.axis or group.name
            views.append(GroupView(key, name, group.axis, group.ranks, group.backend, number, size))
    return tuple(views)


def _median_busbw(rows: Sequence[CollectiveRow]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row.busbw_gbps is not None:
            found[row.group, row.op].append(row.busbw_gbps)
    return {key: median(values) for key, values in found.items()}
