"""Checks of a table: actions missing, repeated or in the wrong place, orders that cannot run,
messages that do not match. Each problem has its place in the file.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final, Literal

from pardbg.lab.schedules.schedule_table import Cell, Op, Table
from pardbg.lab.schedules.transports import (
    TRANSPORTS,
    Deadlock,
    Lowered,
    Transport,
    consumed,
    find_deadlock,
    lower,
    other_end,
    peer,
)

Kind = Literal["missing", "twice", "order", "place", "message", "deadlock"]
Load = Literal["loads", "refused", "no order"]
_BEFORE: Final = {"B": "F", "I": "F", "W": "I"}
MAX_PROBLEMS: Final = 1000
"""Maximum number of problems: one cell 999999F999999 makes a million million others missing."""


@dataclass(frozen=True, slots=True)
class Problem:
    kind: Kind
    text: str
    rank: int = -1
    """Row of the file, from 0; -1: not of a single row."""
    column: int = -1
    """Cell of the row, from 0; -1: not of a single cell."""
    transport: Transport | None = None
    """Transport model with which the problem occurs; None: with any."""
    goes_on: bool = False
    """Whether torch does not fail at the problem, but computes with other data."""

    @property
    def place(self) -> str:
        """Return text such as ``row 2, column 5`` as an editor counts."""
        if self.rank < 0:
            return ""
        return f"row {self.rank + 1}" + (f", column {self.column + 1}" if self.column >= 0 else "")

    def line(self) -> str:
        """Return the problem as one line of text."""
        by = f" ({self.transport})" if self.transport is not None else ""
        return f"{self.place or 'table'}: {self.kind}{by}: {self.text}"


@dataclass(frozen=True, slots=True)
class Verdict:
    num_ranks: int
    num_stages: int
    num_microbatches: int
    problems: tuple[Problem, ...]
    in_flight: tuple[int, ...]
    """rank -> maximum number of microbatches between forward and backward, over its stages."""
    load: Load = "loads"
    """Result of torch's loading of the table: accepted, refused by its own check
    (``_validate_schedule``), or refused for lack of an order of messages (``Malformed compute
    schedule``)."""
    hangs: bool = False
    """Whether a wrong table hangs: no rank reaches the cell at which it would fail."""

    @property
    def good(self) -> bool:
        """Return whether the table runs on every transport."""
        return not self.problems

    @property
    def wrong(self) -> bool:
        """Return whether the table is refused, or computes other results, on any transport."""
        return any(p.kind != "deadlock" for p in self.problems)

    def deadlocks(self, transport: Transport) -> bool:
        """Return whether the table never ends on this transport."""
        return any(p.kind == "deadlock" and p.transport in (None, transport) for p in self.problems)

    @property
    def word(self) -> str:
        """Return the verdict in a few words."""
        if self.wrong:
            return "wrong"
        if self.deadlocks("buffered"):
            return "deadlock"
        by = sorted({p.transport for p in self.problems if p.transport is not None})
        return f"runs with buffered sends, deadlock on {' and '.join(by)}" if by else "good"


def lint(
    table: Table, num_microbatches: int | None = None, transports: Sequence[Transport] = TRANSPORTS
) -> Verdict:
    """Check a table; ``num_microbatches``: expected number, instead of the table's apparent one.
    Only the first ``MAX_PROBLEMS`` problems are kept."""
    count = num_microbatches if num_microbatches is not None else _meant(table)
    found = chain(_counts(table, count), _orders(table), _losses(table), _message_rules(table))
    problems = list(islice(found, MAX_PROBLEMS))
    load: Load = "refused" if problems and _refused(table, count) else "loads"
    hang: Problem | None = None
    if load == "loads":
        lowered = lower(table)
        if lowered.stuck:
            problems.append(_stuck(lowered.stuck, table.owners, table.num_stages - 1))
            load = "no order"
        elif not problems:
            problems += _deadlocks(table, lowered, transports)
        elif table.has_messages and any(p.kind != "deadlock" for p in problems):
            hang = _hang(table, problems)
            problems += [hang] if hang is not None else []
    return Verdict(
        len(table.rows), table.num_stages, count, tuple(problems),
        tuple(_in_flight(row) for row in table.rows), load, hang is not None,
    )  # fmt: skip


def _meant(table: Table) -> int:
    """Return the intended number of microbatches: that of at least half of the stages, so that a
    single wrong number is one problem, not a lack of all below it."""
    forwards: dict[int, set[int]] = defaultdict(set)
    for _, _, op in table.ops():
        if op.kind == "F":
            forwards[op.stage].add(op.microbatch)
    whole = Counter(len(of) for of in forwards.values() if max(of) + 1 == len(of))
    [(count, stages)] = whole.most_common(1) or [(0, 0)]
    return count if stages and 2 * stages >= len(forwards) else table.num_microbatches


def _refused(table: Table, count: int) -> bool:
    """Return whether torch's check refuses the table: each stage on one rank, F before B, I before
    W, as many microbatches as expected. Repeated actions, or ones too late for messages, pass."""
    seen: dict[tuple[int, str], set[int]] = defaultdict(set)
    for rank, _, (stage, kind, mb) in table.ops():
        before = _BEFORE.get(kind)
        if table.owners.get(stage) != rank or (before and mb not in seen[stage, before]):
            return True
        seen[stage, kind].add(mb)
    numbers = ([len(seen[stage, kind]) for kind in "FBIW"] for stage in range(table.num_stages))
    return any(f != count or i != w or b + i != count for f, b, i, w in numbers)


def _counts(table: Table, count: int) -> Iterator[Problem]:
    """Yield problems of F and B (or I and W) that do not occur once, on the stage's rank."""
    owner = table.owners
    seen: Counter[Op] = Counter()
    for rank, cell, op in table.ops():
        if not op.is_compute:
            continue
        seen[op] += 1
        if owner[op.stage] != rank:
            yield Problem("place", f"{op.text} is on rank {rank}, but stage {op.stage} is on "
                          f"rank {owner[op.stage]}", rank, cell.column)  # fmt: skip
        if seen[op] > 1:
            yield Problem("twice", f"{op.text} runs more than once", rank, cell.column)
        if op.microbatch >= count:
            yield Problem("place", f"{op.text}: there are {count} microbatches, 0 to {count - 1}",
                          rank, cell.column)  # fmt: skip
    for stage in range(table.num_stages):
        if stage not in owner:
            yield Problem("missing", f"stage {stage} is on no rank")
            continue
        for mb in range(count):
            yield from _absent(stage, mb, seen, owner[stage])


def _absent(stage: int, mb: int, seen: Counter[Op], rank: int) -> Iterator[Problem]:
    has = {kind for kind in "FBIW" if seen[Op(stage, kind, mb)]}
    if "F" not in has:
        yield Problem("missing", f"no {stage}F{mb}", rank)
    if "B" in has and has & {"I", "W"}:
        other = f"{stage}{min(has & {'I', 'W'})}{mb}"
        yield Problem("twice", f"{stage}B{mb} beside {other}: a backward is whole or split", rank)
    elif "B" not in has:
        if not has & {"I", "W"}:
            yield Problem("missing", f"no {stage}B{mb} (or {stage}I{mb} and {stage}W{mb})", rank)
        for kind in sorted({"I", "W"} - has if has & {"I", "W"} else ()):
            yield Problem("missing", f"no {stage}{kind}{mb}", rank)


def _orders(table: Table) -> Iterator[Problem]:
    """Yield problems of order within a row: forward before backward, I before W."""
    done: set[Op] = set()
    all_ops = {op for _, _, op in table.ops()}
    for rank, cell, op in table.ops():
        if op.kind in _BEFORE:
            needed = op._replace(kind=_BEFORE[op.kind])
            if needed not in done and needed in all_ops:
                yield Problem("order", f"{op.text} before {needed.text}", rank, cell.column)
        done.add(op)


def _losses(table: Table) -> Iterator[Problem]:
    """Yield losses that torch's runtime mixes up: it keeps one per forward of the last stage, in
    the order in which they run, and takes it by the microbatch's number (``_maybe_get_loss``)."""
    last, newest = table.num_stages - 1, -1
    for rank, cell, op in table.ops():
        if op.stage == last and op.kind == "F":
            if op.microbatch < newest:
                text = f"{op.text} after {last}F{newest}: backward would take another one's loss"
                yield Problem("order", text, rank, cell.column, goes_on=True)
                return
            newest = op.microbatch


def _message_rules(table: Table) -> Iterator[Problem]:
    """Yield problems of a table with messages: wrong place, missing other side, or wrong order."""
    if not table.has_messages:
        return
    owner, last = table.owners, table.num_stages - 1
    seen: Counter[Op] = Counter()
    for rank, row in enumerate(table.rows):
        ran: set[Op] = set()
        for cell in row:
            for op in cell.ops:
                seen[op] += 1
                if seen[op] > 1 and op.kind in ("RECV_F", "RECV_B", "SEND_B"):
                    yield Problem("twice", f"{op.text} is there more than once", rank, cell.column)
                yield from _message_here(op, rank, cell, ran, owner, last)
            ran.update(cell.ops)
    yield from _ends(table, seen)
    yield from _crossed(table, owner)


def _message_here(
    op: Op, rank: int, cell: Cell, ran: set[Op], owner: Mapping[int, int], last: int
) -> Iterator[Problem]:
    if op.is_message:
        to = peer(op, owner)
        if owner.get(op.stage) != rank or to is None or to == rank:
            yield Problem("message", f"{op.text} does not belong on rank {rank}", rank, cell.column)
        elif op.kind.startswith("SEND"):
            made = {op._replace(kind=k) for k in ("F" if op.kind == "SEND_F" else "BI")}
            if not made & ran:
                yield Problem("order", f"{op.text} before what it sends has run", rank, cell.column)
            gone = {op._replace(kind=k) for k in "BI"} & ran if op.kind == "SEND_F" else ()
            if gone:
                text = f"{op.text} after {min(gone).text}, with which its output is gone"
                yield Problem("order", text, rank, cell.column)
    elif op.is_compute and op.kind != "W":
        needed, other = consumed(op), op.stage + (-1 if op.kind == "F" else 1)
        if not 0 <= other <= last or needed is None:
            return
        if owner.get(other) == rank:  # handed over within the rank, and nothing waits for it
            kinds = "F" if op.kind == "F" else "BI"
            if not {Op(other, kind, op.microbatch) for kind in kinds} & ran:
                text = f"{op.text} before {other}{op.kind}{op.microbatch}, whose output it takes"
                yield Problem("order", text, rank, cell.column)
        elif needed not in ran:
            yield Problem("order", f"{op.text} before {needed.text}: its input has not been asked "
                          "for", rank, cell.column)  # fmt: skip


def _ends(table: Table, seen: Counter[Op]) -> Iterator[Problem]:
    """Yield messages without their other side: a step does not end before all messages have."""
    for rank, cell, op in table.ops():
        if op.is_message and seen[op] > seen[end := other_end(op)]:
            less = f"fewer {end.text}" if seen[end] else f"no {end.text}"
            yield Problem("deadlock", f"{op.text} has {less}", rank, cell.column)


def _crossed(table: Table, owner: Mapping[int, int]) -> Iterator[Problem]:
    """Yield messages between two ranks that are received in another order than sent: data would be
    mixed up without an error, since messages are told apart by order alone."""
    streams: dict[tuple[int, int], list[Op]] = defaultdict(list)
    arrivals: dict[tuple[int, int], list[tuple[Op, int]]] = defaultdict(list)
    for rank, cell, op in table.ops():
        to = peer(op, owner) if op.is_message else None
        if to is None:
            continue
        if op.kind.startswith("SEND"):
            streams[rank, to].append(other_end(op))
        else:
            arrivals[to, rank].append((op, cell.column))
    for (source, rank), sent in streams.items():
        if len(sent) != len(arrivals[source, rank]):
            continue  # one end is missing: said already
        for wanted, (got, column) in zip(sent, arrivals[source, rank], strict=False):
            if wanted != got:
                mixed = f"{got.text} takes what rank {source} sends for {wanted.text}"
                mixed += ": another order on the two ends"
                yield Problem("message", mixed, rank, column, goes_on=True)
                break


def _deadlocks(
    table: Table, lowered: Lowered, transports: Sequence[Transport]
) -> Iterator[Problem]:
    owner, last = table.owners, table.num_stages - 1
    strictest = max(transports, key=TRANSPORTS.index)
    if find_deadlock(lowered.rows, owner, last, strictest) is None:
        return
    for transport in transports:
        found = find_deadlock(lowered.rows, owner, last, transport)
        if found is not None:
            yield _deadlock(found)
            if transport == "buffered":
                return  # what never ends with buffers ends nowhere


def _hang(table: Table, problems: Sequence[Problem]) -> Problem | None:
    """Return a hang due to the order of messages: a wrong order shifts all later ones, so a rank
    may wait for one that never comes, unless another one fails before."""
    fails = {(p.rank, p.column) for p in problems if not p.goes_on and p.kind != "deadlock"}
    last = table.num_stages - 1
    found = find_deadlock(table.rows, table.owners, last, "buffered", fails, by_order=True)
    return None if found is None else _deadlock(found)


def _stuck(stuck: Mapping[int, Cell], owner: Mapping[int, int], last: int) -> Problem:
    """Return the problem of a compute order that no transport can run, the cycle in words."""
    waits: dict[int, tuple[int, str]] = {}
    for rank, cell in stuck.items():
        for op in cell.ops:
            other = op.stage - 1 if op.kind == "F" else op.stage + 1
            if op.kind != "W" and 0 <= other <= last and owner.get(other) in stuck:
                waits[rank] = (owner[other], f"rank {rank} needs {other}{op.kind}{op.microbatch} "
                               f"for {op.text}")  # fmt: skip
    rank = next(iter(waits), next(iter(stuck)))
    path: list[int] = []
    while rank in waits and rank not in path:
        path.append(rank)
        rank = waits[rank][0]
    circle = path[path.index(rank) :] if rank in path else path
    first = circle[0] if circle else rank
    words = "; ".join(waits[r][1] for r in circle) or f"{stuck[first].text} can never begin"
    return Problem("deadlock", f"the order cannot run: {words}", first, stuck[first].column)


def _deadlock(found: Deadlock) -> Problem:
    ranks = found.cycle or tuple(found.blocked)[:4]
    words = "; ".join(
        f"rank {r} cannot begin {found.blocked[r].cell.text}: {found.blocked[r].why}" for r in ranks
    )
    first = found.blocked[ranks[0]]
    by = None if found.transport == "buffered" else found.transport
    return Problem("deadlock", words, first.rank, first.cell.column, by)


def _in_flight(row: Sequence[Cell]) -> int:
    held = most = 0
    for cell in row:
        for op in cell.ops:
            held += (op.kind == "F") - (op.kind in ("B", "W"))
            most = max(most, held)
    return most
