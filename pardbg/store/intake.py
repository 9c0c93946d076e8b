"""What came of processes, moved into their columns.

Of all processes at once: of a thousand ranks, a few calls of numpy's for each rank and kind of
record are what takes long, however little came.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from pardbg.events.decode import KNOWN_KINDS, records_from, taken, usable
from pardbg.store.device_times import LAUNCH, REACHED, DeviceTimes, concerned
from pardbg_agent import wire

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
} | {LAUNCH: "launch", REACHED: "reached"}  # fmt: skip
"""``action``, ``wait``, ``step``, ``phase``, ``span``, ``metric``, ``memory`` ..."""
TABLE_NAMES: Final = (
    *_KINDS.values(), ISSUE_COLLECTIVE, ISSUE_P2P, DONE_COLLECTIVE, DONE_P2P,
)  # fmt: skip
"""Every table of a process."""
_MOST_BYTES: Final = 1 << 20
"""Moved at a time: what stays in the caches is moved in half the time."""
_NO_TABLE, _UNKNOWN = len(TABLE_NAMES), len(TABLE_NAMES) + 1


def _tables() -> NDArray[np.uint8]:
    """Kind -> place of its table; of an op: of a collective, p2p's is the next one."""
    of = np.full(256, _UNKNOWN, np.uint8)
    of[list(KNOWN_KINDS)] = _NO_TABLE
    for kind, name in (*_KINDS.items(), *((kind, both[0]) for kind, both in _SPLIT.items())):
        of[kind] = TABLE_NAMES.index(name)
    return of


_TABLE_OF: Final = _tables()
_OPS: Final = np.array([kind in _SPLIT for kind in range(256)])
_ISSUES: Final = np.array(
    [name in (ISSUE_COLLECTIVE, ISSUE_P2P) for name in (*TABLE_NAMES, "", "", "")]
)


@dataclass(frozen=True, slots=True)
class Came:
    """What came of a process since it was asked last."""

    bodies: Sequence[bytes]
    received_ns: int
    offsets: tuple[tuple[int, int], ...]
    """(records up to here, what is added to their times); the last one's are all."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a process's part of a batch was."""

    malformed: int
    unknown: int
    number: int
    """Records that are in order."""
    first_ns: int
    newest_ns: int
    groups: frozenset[int]
    """Ids of groups that ops were issued on."""


class Taker(Protocol):
    """A process."""

    device_times: DeviceTimes

    def came(self) -> Came | None:
        """Return what came; it is the caller's from now on."""

    def saw(self, came: Came, seen: Seen) -> None:
        """Note what was in it."""

    def append(self, name: str, records: NDArray[Any]) -> None:
        """Add records to a table."""


def move(processes: Iterable[Taker]) -> None:
    """Move what has come of each into its columns."""
    batch: list[tuple[Taker, Came]] = []
    num_bytes = 0
    for process in processes:
        if (came := process.came()) is None:
            continue
        batch.append((process, came))
        num_bytes += came.offsets[-1][0] * wire.RECORD_BYTES
        if num_bytes >= _MOST_BYTES:
            _move(batch)
            batch, num_bytes = [], 0
    if batch:
        _move(batch)


def _move(batch: Sequence[tuple[Taker, Came]]) -> None:
    records = records_from(b"".join(body for _, came in batch for body in came.bodies))
    if concerned(records).any():
        records, batch = _on_device_clock(records, batch)
    good = usable(records)
    records = _shifted(records, [came for _, came in batch])
    who = np.repeat(np.arange(len(batch)), [came.offsets[-1][0] for _, came in batch])
    kinds = records["kind"]
    tables = _TABLE_OF[kinds] + (_OPS[kinds] & ((records["flags"] & int(wire.Flag.P2P)) != 0))
    _note(batch, records, who, good, tables)
    at = np.flatnonzero(good & (tables < _NO_TABLE))
    at = at[np.argsort(tables[at], kind="stable")]
    if len(batch) > 1:
        at = at[np.argsort(who[at].astype(np.uint16 if len(batch) < 1 << 16 else np.uint32),
                           kind="stable")]  # fmt: skip
    if len(at):
        _distribute(batch, taken(records, at), who[at], tables[at])


def _on_device_clock(
    records: NDArray[Any], batch: Sequence[tuple[Taker, Came]]
) -> tuple[NDArray[Any], Sequence[tuple[Taker, Came]]]:
    """Settle what ran on devices, process by process: some may get more records."""
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


def _shifted(records: NDArray[Any], came: Sequence[Came]) -> NDArray[Any]:
    if not any(offset for one in came for _, offset in one.offsets):
        return records
    lengths, offsets = [], []
    for one in came:
        begin = 0
        for end, offset in one.offsets:
            lengths.append(end - begin)
            offsets.append(offset)
            begin = end
    records = records.copy()
    for name in ("t0_ns", "t1_ns"):
        records[name] += np.repeat(np.array(offsets, np.int64), lengths)
    return records


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
    columns = zip(malformed, unknown, numbers.tolist(), first.tolist(), newest.tolist(),
                  strict=True)  # fmt: skip
    for place, ((process, came), values) in enumerate(zip(batch, columns, strict=True)):
        process.saw(came, Seen(*values, frozenset(groups.get(place, ()))))


def _distribute(
    batch: Sequence[tuple[Taker, Came]], records: NDArray[Any], who: NDArray[np.intp],
    tables: NDArray[np.uint8],
) -> None:  # fmt: skip
    """Add records, of one process and table after the other, to the tables."""
    new = np.ones(len(records), np.bool_)
    new[1:] = (who[1:] != who[:-1]) | (tables[1:] != tables[:-1])
    begins = np.flatnonzero(new)
    ends = [*begins[1:].tolist(), len(records)]
    of = zip(begins.tolist(), ends, who[begins].tolist(), tables[begins].tolist(), strict=True)
    for begin, end, place, table in of:
        batch[place][0].append(TABLE_NAMES[table], records[begin:end])
