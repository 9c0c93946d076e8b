"""Messages between the ranks of a table: where torch puts them, and whether they all arrive.

``lower`` adds sends and receives to a table that has none, in torch's order: a send follows its
compute at once, and the receive is appended to the other rank's row at that moment, so that both
ranks have the messages between them in one order. Source:
torch/distributed/pipelining/schedules.py, ``_add_send_recv``.

``find_deadlock`` runs a table with messages by one of three models of how they travel:

- ``buffered``: a send never waits (gloo, MPI's buffered sends).
- ``pair``: the messages between two ranks are one stream in order, and both ends must come to
  their ends of a message before it moves (NCCL's p2p without batching: a communicator a pair).
- ``rank``: all messages of a rank are one such stream.

Posting never waits in any of them; compute waits for its input. The verdict is of the model, not of
a version of a library.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from pardbg.analysis.pipeline.dependencies import needed
from pardbg.analysis.pipeline.play import play
from pardbg.lab.schedules.schedule_table import Cell, Op, Table

Transport = Literal["buffered", "pair", "rank"]
TRANSPORTS: Final[tuple[Transport, ...]] = ("buffered", "pair", "rank")
"""Models of a transport, each stricter than the one before: ``rank`` is the strictest."""
_ENDS: Final = {
    "SEND_F": ("RECV_F", 1), "RECV_F": ("SEND_F", -1),
    "SEND_B": ("RECV_B", -1), "RECV_B": ("SEND_B", 1),
}  # fmt: skip
"""Kind of a message -> kind of its other side, and the difference of stages."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A table with its messages, as far as an order was found."""

    rows: tuple[tuple[Cell, ...], ...]
    stuck: Mapping[int, Cell]
    """rank -> the compute that can never begin; empty: the whole table is ordered."""


def lower(table: Table) -> Lowered:
    """Add messages to a table. A table that contains messages is not changed."""
    if table.has_messages:
        return Lowered(table.rows, {})
    owner, last = table.owners, table.num_stages - 1
    todo = [[c for c in row if any(op.is_compute for op in c.ops)] for row in table.rows]
    rows: list[list[Cell]] = [[] for _ in todo]
    there: set[tuple[int, Op]] = set()

    def missing(rank: int, cell: Cell) -> Sequence[tuple[int, Op]]:
        inputs = ([(rank, form) for form in _inputs(op, last)] for op in cell.ops)
        return next((forms for forms in inputs if forms and there.isdisjoint(forms)), ())

    def run(rank: int, cell: Cell) -> Iterator[tuple[int, Op]]:
        rows[rank].append(cell)
        for op in cell.ops:
            handed = _handed_on(op, rank, owner, last)
            for where, message in handed:
                rows[where].append(Cell((message,), -1))
            there.update(new := [(rank, op), *handed])
            yield from new

    at = play(todo, missing, run, by_one=True)
    stuck = {rank: row[at[rank]] for rank, row in enumerate(todo) if at[rank] < len(row)}
    return Lowered(tuple(map(tuple, rows)), stuck)


def peer(op: Op, owner: Mapping[int, int]) -> int | None:
    """Return the rank at the other end of a message."""
    step = 1 if op.kind in ("SEND_F", "RECV_B") else -1
    return owner.get(op.stage + step)


def other_end(op: Op) -> Op:
    """Return the receive of a send, and the send of a receive."""
    kind, step = _ENDS[op.kind]
    return Op(op.stage + step, kind, op.microbatch)


def consumed(op: Op) -> Op | None:
    """Return the receive that brings a compute action's input."""
    if op.kind == "F":
        return Op(op.stage, "RECV_F", op.microbatch)
    if op.kind in ("B", "I"):
        return Op(op.stage, "RECV_B", op.microbatch)
    return None


def _handed_on(op: Op, rank: int, owner: Mapping[int, int], last: int) -> Sequence[tuple[int, Op]]:
    """Return the (rank, message) of send and receive that hand on ``op``'s output."""
    if op.kind == "F" and op.stage < last:
        way, other = "F", op.stage + 1
    elif op.kind in ("B", "I") and op.stage > 0:
        way, other = "B", op.stage - 1
    else:
        return ()
    to = owner.get(other)
    if to is None or to == rank:
        return ()
    mb = op.microbatch
    return ((rank, Op(op.stage, f"SEND_{way}", mb)), (to, Op(other, f"RECV_{way}", mb)))


def _inputs(op: Op, last: int) -> tuple[Op, ...]:
    """Return the possible forms of an action's input on its rank: received, or computed there."""
    stage, kind, mb = op
    if kind == "F" and stage > 0:
        return Op(stage, "RECV_F", mb), Op(stage - 1, "F", mb)
    if kind in ("B", "I") and stage < last:
        return Op(stage, "RECV_B", mb), Op(stage + 1, "I", mb), Op(stage + 1, "B", mb)
    return ()


# -- do they arrive


class Blocked(NamedTuple):
    """A rank that cannot go on."""

    rank: int
    cell: Cell
    """The cell that the rank cannot begin."""
    waits_for: int
    """The rank that would have to move first; -1: no rank could help."""
    why: str


@dataclass(frozen=True, slots=True)
class Deadlock:
    transport: Transport
    blocked: Mapping[int, Blocked]
    cycle: tuple[int, ...]
    """Ranks that wait for each other in turn; empty: for a message that never comes."""


def find_deadlock(
    rows: Sequence[Sequence[Cell]], owner: Mapping[int, int], last: int, transport: Transport,
    fails: Collection[tuple[int, int]] = (),
    by_order: bool = False,
) -> Deadlock | None:  # fmt: skip
    """Run a table; return None if all of it runs, or if a rank reaches a cell at which it fails.
    ``rows``: a row per rank, messages included; ``owner``: stage -> rank; ``last``: the last stage;
    ``fails``: (rank, column); ``by_order``: a receive takes the next message to its rank, whatever
    its name: only buffered."""
    links = _Links(rows, owner, last, transport, fails, by_order)
    at = play(rows, links.missing, links.run)
    if links.failed:
        return None
    blocked = {
        rank: links.blocked(rank, row[at[rank]])
        for rank, row in enumerate(rows) if at[rank] < len(row)
    }  # fmt: skip
    return Deadlock(transport, blocked, _cycle(blocked)) if blocked else None


class _Links:
    """Messages in flight while a table is run."""

    def __init__(
        self, rows: Sequence[Sequence[Cell]], owner: Mapping[int, int], last: int,
        transport: Transport, fails: Collection[tuple[int, int]], by_order: bool,
    ) -> None:  # fmt: skip
        self._owner, self._last, self._transport = owner, last, transport
        self._fails, self._by_order, self.failed = fails, by_order, False
        self._there: set[Op] = set()
        """Compute that has run, and receives whose message has arrived."""
        self._posted: set[Op] = set()
        """Messages that were posted, without receives that have arrived."""
        self._streams: dict[tuple[int, int], deque[Op]] = defaultdict(deque)
        """(rank, stream) -> posted messages that have not moved, in order."""
        self._unmet: dict[tuple[tuple[int | None, ...], bool], deque[Op]] = defaultdict(deque)
        """((from, to), whether sends) -> unmatched messages, if names do not count."""

    def missing(self, rank: int, cell: Cell) -> tuple[Op | str, ...]:
        """Return the inputs that a cell lacks; any form of an input is enough."""
        if self._fails and (rank, cell.column) in self._fails:
            self.failed = True
            return ("an end",)
        found = next((m for op in cell.ops if (m := self._lacks(op)) is not None), None)
        if found is None or found.kind not in ("B", "I"):
            return () if found is None else (found,)
        return found, _twin(found)

    def run(self, rank: int, cell: Cell) -> Iterator[Op]:
        """Run a cell; yield the compute and the receives that are done by it."""
        for op in cell.ops:
            if op.is_compute:
                self._there.add(op)
                yield op
            elif op.is_message:
                self._posted.add(op)
                for came in self._post(rank, op):
                    self._there.add(came)
                    self._posted.discard(came)
                    yield came

    def _post(self, rank: int, op: Op) -> Iterator[Op]:
        """Yield the receives that a message's post completes."""
        sends, end = op.kind[0] == "S", other_end(op)
        if self._by_order:  # the first receive takes the first message
            to = peer(op, self._owner)
            way = (rank, to) if sends else (to, rank)
            if waiting := self._unmet[way, not sends]:
                first = waiting.popleft()
                yield first if sends else op
            else:
                self._unmet[way, sends].append(op)
        elif self._transport == "buffered":
            if end in self._posted:
                yield end if sends else op
        else:
            self._streams[rank, self._stream(op)].append(op)
            yield from self._move(rank, self._stream(op))

    def _move(self, rank: int, number: int) -> Iterator[Op]:
        """Yield the receives of messages that can move after a change of a stream."""
        changed = [(rank, number)]
        while changed:
            at = changed.pop()
            stream = self._streams[at]
            other = self._other_stream(at[0], stream[0]) if stream else None
            if other is None or not self._streams[other]:
                continue
            here, end = stream[0], other_end(stream[0])
            if self._streams[other][0] == end:
                stream.popleft(), self._streams[other].popleft()
                self._posted -= {here, end}
                changed += [at, other]
                yield here if here.kind[0] == "R" else end

    def _other_stream(self, rank: int, op: Op) -> tuple[int, int] | None:
        """Return the (rank, stream) of a message's other side; None: the message has none."""
        to = peer(op, self._owner)
        return None if to is None or to == rank else (to, self._stream(other_end(op)))

    def _stream(self, op: Op) -> int:
        """Return the number of a message's stream on its rank."""
        to = peer(op, self._owner)
        return -1 if self._transport == "rank" or to is None else to

    def _lacks(self, op: Op) -> Op | None:
        """Return the input that a compute action lacks: a receive, or compute on its own rank."""
        source = self._input(op)
        if source is None or source in self._there:
            return None
        return None if source.kind in ("B", "I") and _twin(source) in self._there else source

    def _input(self, op: Op) -> Op | None:
        source = needed(op, self._last + 1)
        if source is None or self._owner.get(source.stage) == self._owner.get(op.stage):
            return None if source is None else Op(*source)
        return consumed(op)

    def blocked(self, rank: int, cell: Cell) -> Blocked:
        """Return the reason why a rank cannot begin a cell."""
        missing = next(m for op in cell.ops if (m := self._lacks(op)) is not None)
        if missing.is_compute:
            return Blocked(rank, cell, -1, f"needs {missing.text}, which this rank has not run")
        if missing not in self._posted:
            return Blocked(rank, cell, -1, f"its row has no {missing.text} before it")
        source, end = peer(missing, self._owner), other_end(missing)
        if source is None:
            return Blocked(rank, cell, -1, f"nobody sends what {missing.text} waits for")
        if end not in self._posted:
            return Blocked(rank, cell, source, f"rank {source} has not come to {end.text}")
        if self._by_order:
            taken = f"{end.text} of rank {source} went to another receive"
            return Blocked(rank, cell, source, taken)
        for here, op in ((rank, missing), (source, end)):
            ahead = self._streams[here, self._stream(op)][0]
            to = peer(ahead, self._owner)
            if ahead != op and to is not None:
                behind = f"{op.text} of rank {here} stands behind {ahead.text}"
                return Blocked(rank, cell, to if to != rank else source, behind)
        return Blocked(rank, cell, source, f"{end.text} of rank {source} does not move")


def _twin(op: Op) -> Op:
    """Return the other form of a backward."""
    return op._replace(kind="I" if op.kind == "B" else "B")


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
