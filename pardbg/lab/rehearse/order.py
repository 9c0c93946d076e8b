"""All ranks' ops played against each other: what would be issued, what would wait for ever.

Ranks ran one by one, so their times say nothing of each other. Each rank's own order is what
counts: it goes on until it waits for an op that has not ended, and an op ends when all its members
have issued it, and issued the same. The times that come out count events, ``TICK_NS`` each: they
order, they do not measure. Members that were not run are taken to come.

Transports of sends: *rendezvous* (a send ends when its receive is there: gloo, NCCL with batches),
*buffered* (at once), *pair* (all messages between two ranks are one stream in order: NCCL's p2p
without batches). These are models.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pardbg.analysis.pipeline.play import play as play_rows
from pardbg.lab.rehearse.rank_trace import Records, Trace
from pardbg_agent.tables.c10d_ops import Side, kind_of
from pardbg_agent.wire import Flag, Kind

Transport = Literal["rendezvous", "buffered", "pair"]
TICK_NS: Final = 10_000
_ISSUE, _WAIT, _DONE, _PHASE, _STEP = (
    int(Kind.OP_ISSUE), int(Kind.WAIT), int(Kind.OP_DONE), int(Kind.PHASE), int(Kind.STEP),
)  # fmt: skip
_P2P, _SEND = int(Flag.P2P), int(Flag.SEND)
Ref = tuple[Any, ...]
"""A collective: (group key, seq). An end of a message: (group key, rank, seq)."""


class Made(NamedTuple):
    """What a record says of an op, as Python's own numbers."""

    kind: int
    flags: int
    name_id: int
    group_id: int
    seq: int
    peer: int
    a: int
    b: int


def _made(records: Records) -> list[Made]:
    return [Made(*said) for said in zip(*(records[n].tolist() for n in Made._fields), strict=True)]


class Event(NamedTuple):
    """A rank issues an op, or waits for one."""

    stamp: int
    """Place among the rank's own moments."""
    waits: bool
    op: Ref
    row: int
    """Record of the issue, or of the wait."""
    made: Made


@dataclass(slots=True)
class Op:
    """A collective, or one end of a message."""

    members: frozenset[int] | None
    """Ranks that must issue it; None: an end of a message."""
    came: dict[int, Any] = field(default_factory=dict)
    """rank -> what must be equal over the members"""
    begin_ns: int = 0
    end_ns: int | None = None

    def end(self) -> None:
        """End it a tick after its begin."""
        self.end_ns = self.begin_ns + 1


@dataclass(slots=True)
class Played:
    """A rank as it would have run among the others."""

    trace: Trace
    records: Records
    """Those it would have made, in order, in ticks."""
    end_ns: int
    stuck: int | None = None
    """Its OP_ISSUE, by number, that never ends; None: it ran to its end."""
    cut: bool = False
    """It waits only for ranks that were ended after their steps."""
    odd: tuple[tuple[int, int], ...] = ()
    """(OP_ISSUE by number, when) of its ops that not all of their ranks issued alike."""


class _Rank:
    """One rank's events, and how far it is."""

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
        """Ticks by which each moment is later than its own number, as increments."""
        self.late = 0
        self.events = sorted(self._events(), key=itemgetter(0))
        self.at = 0

    def now(self, stamp: int) -> int:
        return stamp + self.late

    def _events(self) -> Iterator[Event]:
        records, rank = self.trace.records, self.trace.rank
        keys = self.trace.keys()
        unwaited: dict[Ref, None] = {}
        rows = np.flatnonzero(np.isin(records["kind"], (_ISSUE, _WAIT, _PHASE)))
        begins, ends = self.t0[rows].tolist(), self.t1[rows].tolist()
        made = _made(records[rows])
        for row, begin, end, one in zip(rows.tolist(), begins, ends, made, strict=True):
            if one.kind == _PHASE:
                # What C++ issued in a backward (DDP's reducer), it has waited for in there.
                for op in unwaited:
                    yield Event(end, True, op, row, one)
                unwaited.clear()
                continue
            key = keys.get(one.group_id, "")
            op = (key, rank, one.seq) if one.flags & _P2P else (key, one.seq)
            if one.kind == _ISSUE:
                if not one.flags & _P2P:
                    unwaited[op] = None
                yield Event(begin, False, op, row, one)
            else:
                unwaited.pop(op, None)
                yield Event(end, True, op, row, one)


class Play:
    """The ranks that ran, played to where they get."""

    def __init__(self, traces: Sequence[Trace], transport: Transport, ended_early: bool) -> None:
        self._ended_early = ended_early
        self.ranks = {trace.rank: _Rank(trace) for trace in traces}
        self.ops: dict[Ref, Op] = {}
        self._odd: set[Ref] = set()
        self._transport = transport
        self._streams: dict[tuple[Any, ...], deque[tuple[Ref, int]]] = defaultdict(deque)
        """(from, to, tag) or a pair of ranks -> ends of messages that have not met, in order"""

    def run(self) -> dict[int, Played]:
        """Play; rank -> how it went."""
        ranks = list(self.ranks.values())
        at = play_rows(
            [me.events for me in ranks],
            lambda _row, event: self._open(event),
            lambda row, event: self._take(ranks[row], event),
        )
        for me, reached in zip(ranks, at, strict=True):
            me.at = reached
        cut = self._cut() if self._ended_early else set()
        return {rank: self._played(rank, rank in cut) for rank in self.ranks}

    def _open(self, event: Event) -> tuple[Ref, ...]:
        """Return the op that a rank would wait for, if it has not ended."""
        op = self.ops.get(event.op) if event.waits else None
        return () if op is None or op.end_ns is not None else (event.op,)

    def _take(self, me: _Rank, event: Event) -> list[Ref]:
        """Run an event. Returns the ops that it ends."""
        if not event.waits:
            return self._issue(me, event)
        op = self.ops.get(event.op)
        if op is not None and op.end_ns is not None:
            behind = op.end_ns + 1 - me.now(event.stamp)
            if behind > 0:
                me.late += behind
                me.shift[event.stamp] += behind
        return []

    def _issue(self, me: _Rank, event: Event) -> list[Ref]:
        made, trace = event.made, me.trace
        said = trace.ops.get(made.name_id, {})
        now = me.now(event.stamp)
        if made.flags & _P2P:
            return self._message(me, event.op, made, said, now)
        group = trace.groups.get(made.group_id, {})
        op = self.ops.get(event.op)
        if op is None:
            members = frozenset(group.get("ranks") or (trace.rank,)) & self.ranks.keys()
            op = self.ops[event.op] = Op(members)
        op.came[trace.rank] = _what(made, said)
        op.begin_ns = max(op.begin_ns, now)
        if op.members is None or len(op.came) < len(op.members):
            return []
        agree = _agree(op)
        if not agree or len({(what[3], what[5]) for what in op.came.values()}) > 1:
            self._odd.add(event.op)
        if agree:
            op.end()
        return [event.op] * agree

    def _message(
        self, me: _Rank, ref: Ref, made: Made, said: Mapping[str, Any], now: int
    ) -> list[Ref]:
        rank, peer, sends = me.trace.rank, made.peer, bool(made.flags & _SEND)
        op = self.ops[ref] = Op(None, {rank: (max(made.a, made.b), said.get("dtype"))}, now)
        if peer not in self.ranks or (sends and self._transport == "buffered"):
            op.end()
            if peer not in self.ranks:
                return []
        if self._transport == "pair":
            mine, theirs = (rank, peer), (peer, rank)
        else:
            way = (rank, peer) if sends else (peer, rank)
            mine, theirs = (*way, ref[0], said.get("tag", 0), sends), (  # type: ignore[assignment]
                *way, ref[0], said.get("tag", 0), not sends
            )  # fmt: skip
        self._streams[mine].append((ref, 1 if sends else -1))
        return self._meet(mine, theirs)

    def _meet(self, mine: tuple[Any, ...], theirs: tuple[Any, ...]) -> list[Ref]:
        """Match the first ends of two streams, as long as they are a send and a receive."""
        here, there, ended = self._streams[mine], self._streams[theirs], []
        while here and there and here[0][1] + there[0][1] == 0:
            pair = self.ops[here[0][0]], self.ops[there[0][0]]
            sides = {side for op in pair for side in op.came.values()}
            if len(sides) > 1:
                self._odd |= {here[0][0], there[0][0]}
            if len({size for size, _ in sides}) > 1:
                break  # of another size: it would not arrive as it was sent
            refs = here.popleft()[0], there.popleft()[0]
            begin = max(op.begin_ns for op in pair)
            for ref, op in zip(refs, pair, strict=True):
                if op.end_ns is None:
                    op.begin_ns = begin
                    op.end()
                    ended.append(ref)
        return ended

    def _cut(self) -> set[int]:
        """Ranks that wait for nobody but those that ``--steps`` ended, or that wait so."""
        waits = {rank: self._awaited(me) for rank, me in self.ranks.items()}
        gone = {rank for rank, on in waits.items() if on is None}
        cut: set[int] = set()
        while more := {r for r, on in waits.items() if on and r not in cut and on <= gone | cut}:
            cut |= more
        return cut

    def _awaited(self, me: _Rank) -> set[int] | None:
        """Return the ranks that a rank waits for where it stands; None: it ran to its end."""
        if me.at == len(me.events):
            return None
        event = me.events[me.at]
        op = self.ops[event.op]
        if op.members is None:
            return {event.made.peer}
        return set(op.members - op.came.keys())

    def _played(self, rank: int, cut: bool) -> Played:
        """The rank's records in ticks, less those behind where it stands."""
        me = self.ranks[rank]
        records = me.trace.records.copy()
        ticks = np.arange(me.num_stamps + 1) + np.cumsum(me.shift)
        records["t0_ns"], records["t1_ns"] = ticks[me.t0], ticks[me.t1]
        keep = np.ones(len(records), np.bool_)
        stuck, last = None, int(ticks[-1])
        if me.at < len(me.events):
            event = me.events[me.at]
            row = next(e.row for e in me.events if not e.waits and e.op == event.op)
            stuck = int(np.count_nonzero(me.trace.records["kind"][:row] == _ISSUE))
            first = int(me.t1[event.row])
            keep = (me.t1 < first) | (np.arange(len(records)) == row)
            last = int(ticks[max(first - 1, 0)])
        self._complete(me, records, keep)
        made = records[keep]
        made["t1_ns"] = np.maximum(made["t0_ns"], made["t1_ns"])
        when = np.where(made["kind"] == _ISSUE, made["t0_ns"], made["t1_ns"])
        made = made[np.argsort(when, kind="stable")]
        for name in ("t0_ns", "t1_ns"):
            made[name] *= TICK_NS
        made["a"][made["kind"] == _STEP] = 0  # the hooks' cost is a measured time
        made["mark"] = np.arange(1, len(made) + 1)
        rows = [e.row for e in me.events if not e.waits and e.op in self._odd] if self._odd else []
        issued = np.cumsum(me.trace.records["kind"] == _ISSUE)
        odd = tuple((int(issued[row]) - 1, int(ticks[me.t0[row]]) * TICK_NS) for row in rows)
        return Played(me.trace, made, last * TICK_NS, stuck, cut, odd)

    def _complete(self, me: _Rank, records: Records, keep: NDArray[np.bool_]) -> None:
        """An OP_DONE ends when the op does; if it never does, it is not there."""
        keys, rank = me.trace.keys(), me.trace.rank
        rows = np.flatnonzero(records["kind"] == _DONE)
        for row, one in zip(rows.tolist(), _made(records[rows]), strict=True):
            key = keys.get(one.group_id, "")
            op = self.ops.get((key, rank, one.seq) if one.flags & _P2P else (key, one.seq))
            if op is None or op.end_ns is None:
                keep[row] = keep[row] and op is None
            else:
                records["t1_ns"][row] = max(op.end_ns, int(records["t0_ns"][row]))


class Member(NamedTuple):
    """A rank's part of an op."""

    group_id: int
    seq: int
    peer: int | None
    """None: a collective."""
    what: tuple[Any, ...]
    """What must be equal over the members; of a message (op, tag)."""
    bytes: int


def members(trace: Trace) -> Iterator[Member]:
    """Yield its part of each op that a rank issues, in order."""
    for made in _made(trace.records[trace.records["kind"] == _ISSUE]):
        said = trace.ops.get(made.name_id, {})
        message = bool(made.flags & _P2P)
        what = (said.get("op", ""), said.get("tag", 0)) if message else _what(made, said)
        yield Member(
            made.group_id, made.seq, made.peer if message else None, what,
            max(made.a, made.b) if message else made.a,
        )  # fmt: skip


def _what(made: Made, said: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what the members of a collective must have in common."""
    name = said.get("op", "")
    kind = kind_of(name)
    size = made.b if kind.equal is Side.OUT else made.a
    root = said.get("root") if kind.rooted else None
    out = (made.a, made.b) if kind.equal is Side.SHARES else None
    given = 0 if kind.equal is Side.NEITHER else size
    return name, root, given, said.get("dtype"), out, said.get("reduce")


def _agree(op: Op) -> bool:
    """All members call the same; the shares of an all_gather may differ if they add up.
    Other dtypes alone hold nobody up."""
    dtypes = {what[3] for what in op.came.values()}
    if len({what[: 3 if len(dtypes) == 1 else 2] for what in op.came.values()}) == 1:
        return True
    uneven = [what[4] for what in op.came.values()]
    if any(sizes is None for sizes in uneven) or len({w[:2] for w in op.came.values()}) > 1:
        return False
    outs = {out for _, out in uneven}
    return len(outs) == 1 and sum(share for share, _ in uneven) in outs


def play(
    traces: Sequence[Trace], transport: Transport = "rendezvous", ended_early: bool = False
) -> dict[int, Played]:
    """Play what the ranks did against each other; rank -> how it would have gone.

    Args:
        ended_early: ranks were ended after some steps, so what they had begun may lack its end.
    """
    return Play(traces, transport, ended_early).run()
