"""All ranks' ops played against each other: what would be issued, and what would wait for ever.

Ranks ran one by one, so their times say nothing of each other. Each rank's own order counts: it
runs on until it waits for an op that has not ended, and an op ends when all its members have issued
it, and issued the same. The resulting times count events, ``TICK_NS`` each: they order, they do not
measure. Members that were not run are taken to issue what their group does.

Transports of sends: *rendezvous* (a send ends when its receive is issued: gloo, NCCL with batches),
*buffered* (at once), *pair* (all messages between two ranks are one stream in order: NCCL's p2p
without batches). These are models.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pardbg.analysis.pipeline import play as player
from pardbg.lab.rehearse.rank_trace import Records, Trace
from pardbg.store.definitions import OpDef
from pardbg_agent.tables.c10d_ops import Side, kind_of
from pardbg_agent.wire import Flag, Kind

Transport = Literal["rendezvous", "buffered", "pair"]
TICK_NS: Final = 10_000
_ISSUE, _WAIT, _DONE, _PHASE, _STEP = (
    int(Kind.OP_ISSUE), int(Kind.WAIT), int(Kind.OP_DONE), int(Kind.PHASE), int(Kind.STEP),
)  # fmt: skip
_P2P, _SEND = int(Flag.P2P), int(Flag.SEND)
Ref = tuple[str, int] | tuple[str, int, int]
"""A collective: (group key, seq). One side of a message: (group key, rank, seq)."""


class OpRecord(NamedTuple):
    """Fields of an op's record as Python numbers."""

    kind: int
    flags: int
    name_id: int
    group_id: int
    seq: int
    peer: int
    a: int
    b: int


def op_records(records: Records) -> list[OpRecord]:
    """Return a rank's records as values."""
    columns = (records[name].tolist() for name in OpRecord._fields)
    return [OpRecord(*row) for row in zip(*columns, strict=True)]


class Signature(NamedTuple):
    """Properties of an op that must be equal on all members."""

    op: str = ""
    root: int | None = None
    size: int = 0
    """Bytes; 0 if members may have different sizes."""
    dtype: str = ""
    shares: tuple[int, int] | None = None
    """Bytes in and out, for ops whose shares may differ if they add up."""
    reduce: str = ""


def signature(record: OpRecord, op: OpDef) -> Signature:
    """Return the signature of a collective on one rank."""
    kind = kind_of(op.op)
    size = record.b if kind.equal is Side.OUT else record.a
    return Signature(
        op.op,
        op.root if kind.rooted else None,
        0 if kind.equal is Side.NEITHER else size,
        op.dtype,
        (record.a, record.b) if kind.equal is Side.SHARES else None,
        op.reduce,
    )


class Event(NamedTuple):
    """A rank's issue of an op, or its wait for one."""

    stamp: int
    """Index among the rank's own moments."""
    waits: bool
    op: Ref
    row: int
    """Row of the record of the issue, or of the wait."""
    record: OpRecord


@dataclass(slots=True)
class Op:
    """A collective, or one side of a message."""

    members: frozenset[int] | None
    """Ranks that must issue the op; None: one side of a message."""
    issued: dict[int, Signature] = field(default_factory=dict)
    """Rank -> signature with which the rank issued the op."""
    begin: int = 0
    """Begin of the op, ticks."""
    end: int | None = None
    """End of the op, ticks; None: it has not ended."""


@dataclass(slots=True)
class Played:
    """A rank's run as it would have gone among the others."""

    trace: Trace
    records: Records
    """Records up to the point reached, in order, in ticks."""
    end_ns: int
    stuck: int | None = None
    """Number of the OP_ISSUE that never ends; None: the rank ran to its end."""
    cut: bool = False
    """Whether the rank only waits for ranks that were ended after their steps."""
    odd: tuple[tuple[int, int], ...] = ()
    """(number of the OP_ISSUE, tick) of the rank's ops that not all members issued alike."""


class _Rank:
    """One rank's events, and the progress in them."""

    def __init__(self, trace: Trace) -> None:
        records = trace.records
        self.trace = trace
        stamps, places = np.unique(
            np.concatenate([records["t0_ns"], records["t1_ns"]]), return_inverse=True
        )
        self.t0: NDArray[Any] = places[: len(records)]
        self.t1: NDArray[Any] = places[len(records) :]
        self.num_stamps = len(stamps)
        self.shift = np.zeros(len(stamps) + 1, np.int64)
        """Delay of each moment against its own number, ticks, as increments."""
        self.late = 0
        self.events = sorted(self._events(), key=itemgetter(0))
        self.at = 0
        """Number of events already played."""

    def ref(self, record: OpRecord) -> Ref:
        group = self.trace.groups.get(record.group_id)
        key = "" if group is None else group.key
        message = record.flags & _P2P
        return (key, self.trace.rank, record.seq) if message else (key, record.seq)

    def _events(self) -> Iterator[Event]:
        records = self.trace.records
        unwaited: dict[Ref, None] = {}
        rows = np.flatnonzero(np.isin(records["kind"], (_ISSUE, _WAIT, _PHASE)))
        begins, ends = self.t0[rows].tolist(), self.t1[rows].tolist()
        of_rows = zip(rows.tolist(), begins, ends, op_records(records[rows]), strict=True)
        for row, begin, end, record in of_rows:
            if record.kind == _PHASE:
                # The ops that C++ issued in a backward (DDP's reducer) were waited for in there.
                for op in unwaited:
                    yield Event(end, True, op, row, record)
                unwaited.clear()
                continue
            op = self.ref(record)
            if record.kind == _ISSUE:
                if not record.flags & _P2P:
                    unwaited[op] = None
                yield Event(begin, False, op, row, record)
            else:
                unwaited.pop(op, None)
                yield Event(end, True, op, row, record)

    def delay(self, stamp: int, until: int) -> None:
        """Delay a moment, and all later ones, to a tick."""
        behind = until - stamp - self.late
        if behind > 0:
            self.late += behind
            self.shift[stamp] += behind


class Play:
    """The state of playing all ranks' ops."""

    def __init__(self, traces: Sequence[Trace], transport: Transport, ended_early: bool) -> None:
        self._ended_early = ended_early
        self.ranks = {trace.rank: _Rank(trace) for trace in traces}
        self.ops: dict[Ref, Op] = {}
        self._odd: set[Ref] = set()
        self._transport = transport
        self._streams: dict[Hashable, deque[tuple[Ref, bool]]] = defaultdict(deque)
        """(from, to, …) or pair of ranks -> (side of a message, whether a send), not matched"""

    def run(self) -> dict[int, Played]:
        """Play the events of all ranks; return rank -> the rank's played run."""
        ranks = list(self.ranks.values())
        reached = player.play(
            [rank.events for rank in ranks],
            lambda _row, event: self._open(event),
            lambda row, event: self._take(ranks[row], event),
        )
        for rank, at in zip(ranks, reached, strict=True):
            rank.at = at
        cut = self._cut() if self._ended_early else set()
        return {number: self._played(rank, number in cut) for number, rank in self.ranks.items()}

    def _open(self, event: Event) -> tuple[Ref, ...]:
        """Return the op that an event waits for, if that op has not ended."""
        op = self.ops.get(event.op) if event.waits else None
        return () if op is None or op.end is not None else (event.op,)

    def _take(self, rank: _Rank, event: Event) -> list[Ref]:
        """Run an event. Return the ops that end with it."""
        if not event.waits:
            now = event.stamp + rank.late
            message = event.record.flags & _P2P
            return (self._message if message else self._collective)(rank, event, now)
        op = self.ops.get(event.op)
        if op is not None and op.end is not None:
            rank.delay(event.stamp, op.end + 1)
        return []

    def _collective(self, rank: _Rank, event: Event, now: int) -> list[Ref]:
        trace, op = rank.trace, self.ops.get(event.op)
        if op is None:
            group = trace.groups.get(event.record.group_id)
            ranks = group.ranks if group is not None and group.ranks else (trace.rank,)
            op = self.ops[event.op] = Op(frozenset(ranks) & self.ranks.keys())
        op.issued[trace.rank] = signature(event.record, trace.op(event.record.name_id))
        op.begin = max(op.begin, now)
        if op.members is None or len(op.issued) < len(op.members):
            return []
        agree = _agree(op)
        if not agree or len({(one.dtype, one.reduce) for one in op.issued.values()}) > 1:
            self._odd.add(event.op)
        if agree:
            op.end = op.begin + 1
        return [event.op] * agree

    def _message(self, rank: _Rank, event: Event, now: int) -> list[Ref]:
        record, number = event.record, rank.trace.rank
        peer, sends, op = record.peer, bool(record.flags & _SEND), rank.trace.op(record.name_id)
        end = Op(None, {number: Signature(size=max(record.a, record.b), dtype=op.dtype)}, now)
        self.ops[event.op] = end
        if peer not in self.ranks or (sends and self._transport == "buffered"):
            end.end = now + 1  # nothing waits for it yet
        if peer not in self.ranks:
            return []
        here: Hashable = number, peer
        there: Hashable = peer, number
        if self._transport != "pair":
            way = (number, peer) if sends else (peer, number)
            here, there = ((*way, event.op[0], op.tag, side) for side in (sends, not sends))
        self._streams[here].append((event.op, sends))
        return self._meet(self._streams[here], self._streams[there])

    def _meet(self, here: deque[tuple[Ref, bool]], there: deque[tuple[Ref, bool]]) -> list[Ref]:
        """Match two streams' first sides while they are a send and a receive; return ended ones."""
        ended: list[Ref] = []
        while here and there and here[0][1] != there[0][1]:
            refs = here[0][0], there[0][0]
            pair = self.ops[refs[0]], self.ops[refs[1]]
            sides = {side for op in pair for side in op.issued.values()}
            if len(sides) > 1:
                self._odd.update(refs)
            if len({side.size for side in sides}) > 1:
                break  # of another size: it would not arrive as it was sent
            here.popleft(), there.popleft()
            begin = max(op.begin for op in pair)
            for ref, op in zip(refs, pair, strict=True):
                if op.end is None:
                    op.begin, op.end = begin, begin + 1
                    ended.append(ref)
        return ended

    def _cut(self) -> set[int]:
        """Return ranks that in the end only wait for ranks that ``--steps`` ended."""
        waits = {number: self._awaited(rank) for number, rank in self.ranks.items()}
        gone = {number for number, on in waits.items() if on is None}
        cut: set[int] = set()
        while more := {r for r, on in waits.items() if on and r not in cut and on <= gone | cut}:
            cut |= more
        return cut

    def _awaited(self, rank: _Rank) -> set[int] | None:
        """Return the ranks that a rank waits for at present; None: it ran to its end."""
        if rank.at == len(rank.events):
            return None
        event = rank.events[rank.at]
        op = self.ops[event.op]
        return {event.record.peer} if op.members is None else set(op.members - op.issued.keys())

    def _played(self, rank: _Rank, cut: bool) -> Played:
        """Return the rank's records in ticks, up to the point that it reached."""
        original = rank.trace.records
        records = original.copy()
        ticks = np.arange(rank.num_stamps + 1) + np.cumsum(rank.shift)
        records["t0_ns"], records["t1_ns"] = ticks[rank.t0], ticks[rank.t1]
        keep = np.ones(len(records), np.bool_)
        stuck, last = None, int(ticks[-1])
        if rank.at < len(rank.events):
            event = rank.events[rank.at]
            row = next(e.row for e in rank.events if not e.waits and e.op == event.op)
            stuck = int(np.count_nonzero(original["kind"][:row] == _ISSUE))
            first = int(rank.t1[event.row])
            keep = (rank.t1 < first) | (np.arange(len(records)) == row)
            last = int(ticks[max(first - 1, 0)])
        self._complete(rank, records, keep)
        odd = [e for e in rank.events if not e.waits and e.op in self._odd] if self._odd else []
        issued = np.cumsum(original["kind"] == _ISSUE)
        moments = ((int(issued[e.row]) - 1, int(ticks[rank.t0[e.row]]) * TICK_NS) for e in odd)
        return Played(
            rank.trace, _in_order(records[keep]), last * TICK_NS, stuck, cut, tuple(moments)
        )

    def _complete(self, rank: _Rank, records: Records, keep: NDArray[np.bool_]) -> None:
        """Set the end of each OP_DONE to its op's end; drop it if the op never ends."""
        rows = np.flatnonzero(records["kind"] == _DONE)
        for row, record in zip(rows.tolist(), op_records(records[rows]), strict=True):
            op = self.ops.get(rank.ref(record))
            if op is None or op.end is None:
                keep[row] = keep[row] and op is None
            else:
                records["t1_ns"][row] = max(op.end, int(records["t0_ns"][row]))


def _in_order(records: Records) -> Records:
    """Return records with times in ns, in the order in which a running rank would write them."""
    records["t1_ns"] = np.maximum(records["t0_ns"], records["t1_ns"])
    when = np.where(records["kind"] == _ISSUE, records["t0_ns"], records["t1_ns"])
    records = records[np.argsort(when, kind="stable")]
    for name in ("t0_ns", "t1_ns"):
        records[name] *= TICK_NS
    records["a"][records["kind"] == _STEP] = 0  # the hooks' cost is a measured time
    records["mark"] = np.arange(1, len(records) + 1)
    return records


class Member(NamedTuple):
    """A rank's part of an op."""

    group_id: int
    seq: int
    peer: int | None
    """Peer of a message; None: a collective."""
    op: OpDef
    signature: Signature
    """Signature of a collective."""
    bytes: int


def members(trace: Trace) -> Iterator[Member]:
    """Yield a rank's part of each op that the rank issues, in order."""
    for record in op_records(trace.records[trace.records["kind"] == _ISSUE]):
        op, message = trace.op(record.name_id), record.flags & _P2P
        yield Member(
            record.group_id, record.seq, record.peer if message else None, op,
            signature(record, op), max(record.a, record.b) if message else record.a,
        )  # fmt: skip


def _agree(op: Op) -> bool:
    """Return whether all members' signatures agree. Shares may differ if they add up; another dtype
    of as many bytes does not block ranks."""
    issued = op.issued.values()
    same_dtype = len({one.dtype for one in issued}) == 1
    if len({(one.op, one.root, one.size if same_dtype else 0) for one in issued}) == 1:
        return True
    shares = [one.shares for one in issued if one.shares is not None]
    if len(shares) < len(issued) or len({(one.op, one.root) for one in issued}) > 1:
        return False
    outs = {out for _, out in shares}
    return len(outs) == 1 and sum(share for share, _ in shares) in outs


def play(
    traces: Sequence[Trace], transport: Transport = "rendezvous", ended_early: bool = False
) -> dict[int, Played]:
    """Play all ranks' ops against each other; return rank -> its played run. ``ended_early``: ranks
    were ended after some steps, so ops may lack their end."""
    return Play(traces, transport, ended_early).run()
