"""Whom a wait or an op of the timeline was for: the rank that came last, and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.answers.timeline import LaneSpan

_SEEN_NS: Final = 1_000_000
"""A completion may be recorded so long after the wait for it."""


Lanes = Mapping[int, Mapping[str, tuple[LaneSpan, ...]]]
"""rank -> lane -> boxes"""


@dataclass(frozen=True, slots=True)
class Spot:
    """The chosen box."""

    rank: int
    lane: str
    t0_ns: int

    def span(self, lanes: Lanes) -> LaneSpan | None:
        """It as it is drawn now: the last one that begins there or before."""
        begun = (s for s in lanes.get(self.rank, {}).get(self.lane, ()) if s.t0_ns <= self.t0_ns)
        return max(begun, key=lambda span: span.t0_ns, default=None)


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """What an op of a rank waited for."""

    op: str
    """``all_reduce dp #43``, ``recv F mb2 from r1``."""
    bytes: int
    rank: int | None
    """Who came after it, last of all; None: nobody did."""
    came_ns: int | None
    """When that was; None: it has not come."""
    late_ns: int
    """How long after the waiting rank, without holds."""


def waited_for(snapshot: Snapshot, lanes: Lanes, spot: Spot) -> WaitedFor | None:
    """Of the matched ops the one that the box is, or of those it waited for the one that kept it
    longest; None where that is not known."""
    rank, lane, span = spot.rank, spot.lane, spot.span(lanes)
    if lane not in ("comm", "wait") or span is None:
        return None
    found = [
        about
        for begun, done, about in (*_collectives(snapshot, rank), *_messages(snapshot, rank))
        if (begun == span.t0_ns if lane == "comm" else _within(span, begun, done))
    ]
    return max(found, key=lambda about: about.late_ns, default=None)


def _within(span: LaneSpan, begun: int, done: int | None) -> bool:
    """The op was under way in the wait, and the wait ended with it."""
    return begun <= span.t1_ns and (done is None or span.t0_ns < done <= span.t1_ns + _SEEN_NS)


Found = Iterator[tuple[int, int | None, WaitedFor]]
"""(issued, completed, what it waited for) of a rank's ops."""


def _collectives(snapshot: Snapshot, rank: int) -> Found:
    for row in snapshot.collectives:
        own = next((a for a in row.arrivals if a.rank == rank), None)
        if own is None or own.issued_ns is None or own.came_ns is None:
            continue
        op = f"{row.op} {row.label or row.group} #{row.seq}"
        last = max((a for a in row.arrivals if a.came_ns is not None), key=lambda a: a.came_ns or 0)
        about = WaitedFor(op, row.bytes, None, None, 0)
        if row.missing:
            about = WaitedFor(op, row.bytes, row.missing[0], None, snapshot.t_ns - own.issued_ns)
        elif last.rank != rank and (late := (last.came_ns or 0) - own.came_ns) > 0:
            about = WaitedFor(op, row.bytes, last.rank, last.issued_ns, late)
        yield own.issued_ns, own.completed_ns, about


def _messages(snapshot: Snapshot, rank: int) -> Found:
    for row in snapshot.p2p:
        if rank not in (row.src, row.dst):
            continue
        sends = rank == row.src
        own, peers = (row.send_ns, row.recv_ns) if sends else (row.recv_ns, row.send_ns)
        if own is None:
            continue
        peer = row.dst if sends else row.src
        what = f"{row.label} " if row.label else ""
        op = f"send {what}to r{peer}" if sends else f"recv {what}from r{peer}"
        late = (snapshot.t_ns if peers is None else peers) - own
        if not sends and row.waited_ns is not None:
            late = row.waited_ns
        about = WaitedFor(op, row.bytes, peer, peers, late)
        yield own, row.done_ns, about if late > 0 else WaitedFor(op, row.bytes, None, None, 0)
