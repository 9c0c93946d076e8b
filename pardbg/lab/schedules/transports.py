"""Whether a table with messages runs to its end, by three models of how messages travel.

- ``buffered``: a send never waits (gloo, MPI's buffered sends).
- ``pair``: the messages between two ranks are one stream in order, and both ends must come to
  their ends of a message before it moves (NCCL's p2p without batching: a communicator a pair).
- ``rank``: all messages of a rank are one such stream.

Posting never waits in any of them; compute waits for its input. These are models: they say what a
transport of that kind does, not what a version of a library does.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from pardbg.analysis.pipeline.dependencies import COMPUTE
from pardbg.lab.schedules.lowering import consumed, peer
from pardbg.lab.schedules.schedule_table import Cell, Op

Transport = Literal["buffered", "pair", "rank"]
TRANSPORTS: Final[tuple[Transport, ...]] = ("buffered", "pair", "rank")
"""Each is stricter than the one before: what runs on ``rank`` runs on all."""
_ENDS: Final = {
    "SEND_F": ("RECV_F", 1), "RECV_F": ("SEND_F", -1),
    "SEND_B": ("RECV_B", -1), "RECV_B": ("SEND_B", 1),
}  # fmt: skip
"""Kind of a message -> kind of its other end, stages from here to there."""


class Blocked(NamedTuple):
    """A rank that goes no further."""

    rank: int
    cell: Cell
    """What it cannot begin."""
    waits_for: int
    """The rank that would have to move first; -1: nobody could help."""
    why: str


@dataclass(frozen=True, slots=True)
class Deadlock:
    transport: Transport
    blocked: Mapping[int, Blocked]
    cycle: tuple[int, ...]
    """Ranks that wait for each other in turn; empty: for something that never comes."""


def run(
    rows: Sequence[Sequence[Cell]], owner: Mapping[int, int], last: int, transport: Transport,
    fails: Collection[tuple[int, int]] | None = None,
) -> Deadlock | None:  # fmt: skip
    """Play the table; None if all of it runs.

    Args:
        rows: a row a rank, messages included.
        owner: stage -> rank.
        last: the last stage.
        fails: (rank, column) at which a rank fails; then None, too, if one comes to such a cell. A
            receive takes what its rank is sent next, whatever the names: only buffered.
    """
    play = _Play(rows, owner, last, transport, fails)
    while play.advance() or play.deliver():
        pass
    if play.failed:
        return None
    blocked = {
        rank: play.blocked(rank) for rank, row in enumerate(rows) if play.at[rank] < len(row)
    }
    return Deadlock(transport, blocked, _cycle(blocked)) if blocked else None


class _Play:
    def __init__(
        self, rows: Sequence[Sequence[Cell]], owner: Mapping[int, int], last: int,
        transport: Transport, fails: Collection[tuple[int, int]] | None,
    ) -> None:  # fmt: skip
        self._fails, self.failed = fails, False
        self.rows, self._owner, self._last, self._transport = rows, owner, last, transport
        self.at = [0] * len(rows)
        self._there: set[Op] = set()
        """Compute that has run, and receives whose message has come."""
        self._streams: dict[tuple[int, int], deque[Op]] = defaultdict(deque)
        """(rank, stream) -> its messages that were posted and have not moved, in order."""
        self._posted: set[Op] = set()
        self._came: set[Op] = set()
        """Receives of a buffered transport whose message can move."""
        self._in_order: dict[tuple[Any, bool], deque[Op]] = defaultdict(deque)
        """((from, to), whether sends) -> those that have not met, where names do not count."""

    def advance(self) -> bool:
        """Move each rank as far as it gets. True if one moved."""
        moved = False
        for rank, row in enumerate(self.rows):
            at = self.at[rank]
            while at < len(row):
                ops = row[at].ops
                if self._fails and (rank, row[at].column) in self._fails:
                    self.failed = True
                    break
                if ops[0].kind in COMPUTE and self._missing(ops[0]) is not None:
                    break
                if len(ops) > 1 and any(self._missing(op) is not None for op in ops):
                    break
                for op in ops:
                    self._take(rank, op)
                at += 1
            moved |= at > self.at[rank]
            self.at[rank] = at
        return moved

    def _take(self, rank: int, op: Op) -> None:
        if op.is_compute:
            self._there.add(op)
        elif op.is_message:
            self._posted.add(op)
            if self._fails is not None:
                self._next(rank, op)
            elif self._transport != "buffered":
                self._streams[rank, self._stream(op)].append(op)
            elif (end := other_end(op)) in self._posted:
                self._came.add(op if op.kind[0] == "R" else end)

    def _next(self, rank: int, op: Op) -> None:
        """From a rank to another, the first receive takes the first message."""
        to, sends = peer(op, self._owner), op.kind[0] == "S"
        way = (rank, to) if sends else (to, rank)
        if theirs := self._in_order[way, not sends]:
            first = theirs.popleft()
            self._came.add(first if sends else op)
        else:
            self._in_order[way, sends].append(op)

    def _stream(self, op: Op) -> int:
        """Return the number of the stream of its rank that a message is in."""
        to = peer(op, self._owner)
        return -1 if self._transport == "rank" or to is None else to

    def _missing(self, op: Op) -> Op | None:
        """Return what a compute action waits for: a receive, or compute on its own rank."""
        needed = self._input(op)
        if needed is None or needed in self._there:
            return None
        if needed.kind in ("B", "I"):
            twin = needed._replace(kind="I" if needed.kind == "B" else "B")
            return None if twin in self._there else needed
        return needed

    def _input(self, op: Op) -> Op | None:
        stage, kind, mb = op
        if kind not in COMPUTE or (kind == "F" and stage == 0):
            return None
        if kind == "W":
            return Op(stage, "I", mb)
        if kind != "F" and stage >= self._last:
            return Op(stage, "F", mb)
        other = stage - 1 if kind == "F" else stage + 1
        if self._owner.get(other) == self._owner.get(stage):
            return Op(other, kind, mb)
        return consumed(op)

    def deliver(self) -> bool:
        """Move each message that can. True if one did."""
        if self._transport == "buffered":
            came, self._came = self._came, set()
            self._posted -= came
            self._there |= came
            return bool(came)
        moved = False
        for (rank, _), stream in list(self._streams.items()):
            while stream and self._meets(rank, stream[0]):
                here = stream.popleft()
                there = other_end(here)
                to = peer(here, self._owner)
                self._streams[to if to is not None else rank, self._stream(there)].popleft()
                self._posted -= {here, there}
                self._there.add(here if here.kind[0] == "R" else there)
                moved = True
        return moved

    def _meets(self, rank: int, op: Op) -> bool:
        """Both ends of the message are the first of their streams."""
        to, end = peer(op, self._owner), other_end(op)
        if to is None or to == rank:
            return False
        other = self._streams.get((to, self._stream(end)))
        return other is not None and len(other) > 0 and other[0] == end

    def blocked(self, rank: int) -> Blocked:
        """Why the rank does not begin its next cell."""
        cell = self.rows[rank][self.at[rank]]
        missing = next(m for op in cell.ops if (m := self._missing(op)) is not None)
        if missing.is_compute:
            return Blocked(rank, cell, -1, f"needs {missing.text}, which this rank has not run")
        if missing not in self._posted:
            return Blocked(rank, cell, -1, f"its row has no {missing.text} before it")
        source, end = peer(missing, self._owner), other_end(missing)
        if source is None:
            return Blocked(rank, cell, -1, f"nobody sends what {missing.text} waits for")
        if end not in self._posted:
            return Blocked(rank, cell, source, f"rank {source} has not come to {end.text}")
        if self._fails is not None:
            taken = f"{end.text} of rank {source} went to another receive"
            return Blocked(rank, cell, source, taken)
        for here, op in ((rank, missing), (source, end)):
            ahead = self._streams[here, self._stream(op)][0]
            to = peer(ahead, self._owner)
            if ahead != op and to is not None:
                behind = f"{op.text} of rank {here} stands behind {ahead.text}"
                return Blocked(rank, cell, to if to != rank else source, behind)
        return Blocked(rank, cell, source, f"{end.text} of rank {source} does not move")


def other_end(op: Op) -> Op:
    """Return the receive of a send, and the send of a receive."""
    kind, step = _ENDS[op.kind]
    return Op(op.stage + step, kind, op.microbatch)


def _cycle(blocked: Mapping[int, Blocked]) -> tuple[int, ...]:
    for first in blocked:
        path: list[int] = []
        rank = first
        while rank in blocked and rank not in path:
            path.append(rank)
            rank = blocked[rank].waits_for
        if rank in path:
            return tuple(path[path.index(rank) :])
    return ()
