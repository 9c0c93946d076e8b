"""Intake of records: checked and put on the hub's clock as they come, and moved into column tables
once a reader needs them or many wait.

All processes are handled at once: with a thousand ranks, a few numpy calls per rank and kind of
record would take most of the time, however few records came.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from pardbg.events.decode import KNOWN_KINDS, records_from, taken, usable
from pardbg.store.device_times import LAUNCH, REACHED, STOOD, DeviceTimes, concerned
from pardbg.store.table import PUT_BY_BYTES, Table, append, blocks_of, part_of
from pardbg_agent import wire

T = TypeVar("T")
ISSUE_COLLECTIVE: Final = "issue"
ISSUE_P2P: Final = "issue_p2p"
DONE_COLLECTIVE: Final = "done"
DONE_P2P: Final = "done_p2p"
_SPLIT: Final = {
    int(wire.Kind.OP_ISSUE): (ISSUE_COLLECTIVE, ISSUE_P2P),
    int(wire.Kind.OP_DONE): (DONE_COLLECTIVE, DONE_P2P),
}
_KINDS: Final = {
    int(kind): kind.name.lower()
    for kind in wire.Kind
    if kind
    not in (
        wire.Kind.OP_ISSUE, wire.Kind.OP_DONE, wire.Kind.LOST, wire.Kind.DEVICE,
        wire.Kind.DEVICE_BEGIN,
    )
} | {LAUNCH: "launch", REACHED: "reached", STOOD: "stood"}  # fmt: skip
"""``action``, ``wait``, ``step``, ``phase``, ``span``, ``metric``, ``memory`` ..."""
TABLE_NAMES: Final = (
    *_KINDS.values(), ISSUE_COLLECTIVE, ISSUE_P2P, DONE_COLLECTIVE, DONE_P2P,
)  # fmt: skip
"""Every table of a process."""
_MOST_BYTES: Final = 1 << 20
"""Bytes moved at a time: a move that fits the caches takes half the time."""
_NO_TABLE, _UNKNOWN = len(TABLE_NAMES), len(TABLE_NAMES) + 1


def _tables() -> NDArray[np.uint8]:
    """Return kind -> index of its table; for ops the collectives' table, p2p's is the next one."""
    of = np.full(256, _UNKNOWN, np.uint8)
    of[list(KNOWN_KINDS)] = _NO_TABLE
    for kind, name in (*_KINDS.items(), *((kind, both[0]) for kind, both in _SPLIT.items())):
        of[kind] = TABLE_NAMES.index(name)
    return of


_TABLE_OF: Final = _tables()
_BIT_OF: Final = {name: 1 << at for at, name in enumerate(TABLE_NAMES)}
_BITS: Final = np.array([*_BIT_OF.values(), 0, 0], np.int64)
_ACTION: Final = TABLE_NAMES.index("action")
_OPS: Final = np.array([kind in _SPLIT for kind in range(256)])
_ISSUES: Final = np.array(
    [name in (ISSUE_COLLECTIVE, ISSUE_P2P) for name in (*TABLE_NAMES, "", "", "")]
)


@dataclass(frozen=True, slots=True)
class Came:
    """Received data of a process since the last take."""

    bodies: Sequence[bytes]
    received_ns: int
    offsets: tuple[tuple[int, int], ...]
    """(end index of records, ns to add to their times); the last entry ends at all records."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Summary of a process's part of a batch of records."""

    malformed: int
    unknown: int
    number: int
    """Number of valid records."""
    first_ns: int
    newest_ns: int
    action_ns: int
    """End of the newest action; 0: none."""
    groups: set[int]
    """Ids of groups that ops were issued on."""


class PutBy:
    """Records of a process that are kept until one of its tables is read."""

    def __init__(self) -> None:
        self._bodies: list[bytes] = []
        self._tables = self._ever = self.num_bytes = 0
        self.most_bytes = PUT_BY_BYTES[0]
        """Bytes beyond which records do not wait for a reader."""
        self.rests = False
        """Whether records stay here even if a reader asks for them."""
        self.look: ref[object] | None = None
        """A frozen view of the tables, if there is one: while it lives, no row is evicted and no
        kept records are moved unasked."""

    def add(self, records: NDArray[Any], tables: int) -> None:
        """Keep more records; ``tables`` has a bit for each table that the records belong to."""
        self._bodies.append(body := records.tobytes())
        self.num_bytes += len(body)
        self._tables |= tables
        self._ever |= tables

    def has(self, name: str) -> bool:
        """Return whether there are records of that table."""
        return not self.rests and bool(self._tables & _BIT_OF[name])

    def has_had(self, name: str) -> bool:
        """Return whether records of that table have ever come."""
        return bool(self._ever & _BIT_OF[name])

    @property
    def looked_at(self) -> bool:
        return self.look is not None and self.look() is not None

    @property
    def overflows(self) -> bool:
        """Return whether so many records are kept that they must not wait for a reader."""
        return self.num_bytes >= self.most_bytes and not self.looked_at

    def take(self) -> list[bytes]:
        """Return all kept records; the caller owns them from now on."""
        if self.rests:
            return []
        found, self._bodies, self._tables, self.num_bytes = self._bodies, [], 0, 0
        return found


class Taker(Protocol):
    """A process whose records are taken in."""

    device_times: DeviceTimes
    put_by: PutBy

    def came(self) -> Came | None:
        """Return the received data; the caller owns it from now on."""

    def saw(self, came: Came, seen: Seen) -> None:
        """Note the summary of received data."""

    def table_for(self, name: str) -> Table:
        """Return the table that is to take rows."""

    def added(self, name: str) -> None:
        """Note that the table has taken rows."""


def take(processes: Iterable[Taker]) -> None:
    """Check the received data of each process, and keep its records for the column tables."""
    received = ((one, came) for one in processes if (came := one.came()) is not None)
    for batch in _batches(received, lambda came: came.offsets[-1][0] * wire.RECORD_BYTES):
        _take(batch)


def _batches(
    of: Iterable[tuple[Taker, T]], num_bytes: Callable[[T], int]
) -> Iterator[list[tuple[Taker, T]]]:
    """Yield processes with their data, about _MOST_BYTES at a time."""
    batch, filled = list[tuple[Taker, T]](), 0
    for one in of:
        batch.append(one)
        filled += num_bytes(one[1])
        if filled >= _MOST_BYTES:
            yield batch
            batch, filled = [], 0
    if batch:
        yield batch


def _take(batch: Sequence[tuple[Taker, Came]]) -> None:
    records = records_from(bytearray().join(body for _, came in batch for body in came.bodies))
    if concerned(records).any():
        records, batch = _on_device_clock(records, batch)
    good = usable(records)
    _shift(records, [came for _, came in batch])
    who = np.repeat(np.arange(len(batch)), [came.offsets[-1][0] for _, came in batch])
    tables = _tables_of(records)
    _note(batch, records, who, good, tables)
    if not (kept := good & (tables < _NO_TABLE)).all():
        records, who = taken(records, np.flatnonzero(kept)), who[kept]
        tables = tables[kept]
    if not len(who):
        return
    begins = np.flatnonzero(np.diff(who, prepend=-1))
    bits = np.bitwise_or.reduceat(_BITS[tables], begins).tolist()
    ends = [*begins[1:].tolist(), len(who)]
    parts = zip(who[begins].tolist(), begins.tolist(), ends, bits, strict=True)
    for place, begin, end, some in parts:
        batch[place][0].put_by.add(records[begin:end], some)
    to_columns(process for process, _ in batch if process.put_by.overflows)


def to_columns(processes: Iterable[Taker]) -> None:
    """Move the kept records of each process into its column tables."""
    kept = ((one, bodies) for one in processes if (bodies := one.put_by.take()))
    for batch in _batches(kept, lambda bodies: sum(map(len, bodies))):
        lengths = [sum(map(len, bodies)) // wire.RECORD_BYTES for _, bodies in batch]
        records = records_from(b"".join(body for _, bodies in batch for body in bodies))
        _distribute([process for process, _ in batch], records, lengths)


def _tables_of(records: NDArray[Any]) -> NDArray[np.uint8]:
    kinds = records["kind"]
    p2p = _OPS[kinds] & ((records["flags"] & int(wire.Flag.P2P)) != 0)
    found: NDArray[np.uint8] = _TABLE_OF[kinds] + p2p
    return found


def _on_device_clock(
    records: NDArray[Any], batch: Sequence[tuple[Taker, Came]]
) -> tuple[NDArray[Any], Sequence[tuple[Taker, Came]]]:
    """Settle records of devices, process by process: some processes may get more records."""
    parts, changed, begin = [], [], 0
    for process, came in batch:
        *before, (number, offset) = came.offsets
        part = records[begin : begin + number]
        begin += number
        if concerned(part).any():
            part = process.device_times.settle(part)
        parts.append(part)
        changed.append((process, replace(came, offsets=(*before, (len(part), offset)))))
    return np.concatenate(parts), changed


def _shift(records: NDArray[Any], came: Sequence[Came]) -> None:
    """Put the records' times on the hub's clock, in place."""
    parts = (itertools.pairwise(((0, 0), *one.offsets)) for one in came)
    every = [(end - begin, ns) for of in parts for (begin, _), (end, ns) in of]
    if any(ns for _, ns in every):
        lengths, offsets = np.array(every, np.int64).T
        for name in ("t0_ns", "t1_ns"):
            records[name] += np.repeat(offsets, lengths)


def _note(
    batch: Sequence[tuple[Taker, Came]], records: NDArray[Any], who: NDArray[np.intp],
    good: NDArray[np.bool_], tables: NDArray[np.uint8],
) -> None:  # fmt: skip
    size, all_of = len(batch), np.bincount(who, minlength=len(batch))
    malformed = np.bincount(who[~good], minlength=size)
    unknown = np.bincount(who[good & (tables == _UNKNOWN)], minlength=size).tolist()
    numbers, malformed = all_of - malformed, malformed.tolist()
    first, newest = np.zeros(size, np.int64), np.zeros(size, np.int64)
    some = np.flatnonzero(numbers)
    if len(some):
        begins = (np.cumsum(numbers) - numbers)[some]
        whole = slice(None) if good.all() else good
        first[some] = np.minimum.reduceat(records["t0_ns"][whole], begins)
        newest[some] = np.maximum.reduceat(records["t1_ns"][whole], begins)
    issued = np.flatnonzero(good & _ISSUES[tables])
    groups: dict[int, set[int]] = {}
    for code in np.unique(who[issued] << 16 | records["group_id"][issued]).tolist():
        groups.setdefault(code >> 16, set()).add(code & 0xFFFF)
    actions, action_ns = np.flatnonzero(good & (tables == _ACTION)), np.zeros(size, np.int64)
    np.maximum.at(action_ns, who[actions], records["t1_ns"][actions])
    columns = zip(malformed, unknown, numbers.tolist(), first.tolist(), newest.tolist(),
                  action_ns.tolist(), (groups.get(place, set()) for place in range(size)),
                  strict=True)  # fmt: skip
    for (process, came), values in zip(batch, columns, strict=True):
        process.saw(came, Seen(*values))


def _distribute(batch: Sequence[Taker], records: NDArray[Any], lengths: Sequence[int]) -> None:
    """Add records, so many of each process, to the processes' tables."""
    order = np.argsort(tables := _tables_of(records), kind="stable")
    who = np.repeat(np.arange(len(batch)), lengths)[order]
    rows, tables = blocks_of(taken(records, order)), tables[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (who[1:] != who[:-1]) | (tables[1:] != tables[:-1])
    begins = np.flatnonzero(new)
    counts = np.diff(begins, append=len(order)).tolist()
    names = [TABLE_NAMES[table] for table in tables[begins].tolist()]
    of = [*zip([batch[at] for at in who[begins].tolist()], names, strict=True)]
    grow = [process.table_for(name) for process, name in of]
    parts = zip(grow, begins.tolist(), counts, strict=True)
    for _, on_shelf in itertools.groupby(parts, lambda part: part[0].shelf):
        some, firsts, numbers = zip(*on_shelf, strict=True)
        append(some, numbers, part_of(rows, slice(firsts[0], firsts[-1] + numbers[-1])))
    for process, name in of:
        process.added(name)
