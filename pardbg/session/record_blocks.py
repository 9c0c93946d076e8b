"""Record batches of one chunk as blocks, one for each process, and back again bit for bit.

A record says little that the one before it of the same kind did not say, so each field becomes a
column of differences with the rows of one kind beside each other. Times stay in the order in which
they came. Pure: bytes in, bytes out; what is decoded is bounded, whatever the bytes claim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pardbg.events.decode import RECORD_DTYPE
from pardbg.session import columns
from pardbg.session.columns import Column, Head, Ints, Rows, Table
from pardbg.session.message_blocks import MAX_MESSAGES, Block, Numbered, block_of
from pardbg.store.source import Message
from pardbg_agent import wire
from pardbg_agent.wire import Flag, Kind

MAX_RECORDS: Final = (64 << 20) // wire.RECORD_BYTES
"""Maximum number of records of one chunk; more is damage or malice."""
PART_BYTES: Final = 1 << 20
"""Bytes of batches that are encoded together: more would leave the processor's caches. The blocks
of one part have columns of the same widths."""
MAX_PARTS: Final = 256
"""Maximum number of parts of one chunk."""
_FRAME: Final = wire.FRAME.size
_FRAME_DTYPE: Final = np.dtype(
    [("version", "<u2"), ("flags", "<u2"), ("count", "<u4"), ("first", "<u8"), ("dropped", "<u8"),
     ("sent_ns", "<i8")]
)  # fmt: skip
assert _FRAME_DTYPE.itemsize == _FRAME
BATCHES: Final = (
    Column("sequence"), Column("received_ns"), Column("version"), Column("flags"),
    Column("skipped"), Column("dropped"), Column("count", differences=False),
    Column("age_ns", differences=False),
)  # fmt: skip
"""``skipped``: index of the batch's first record less the block's records before it. ``age_ns``:
time from sending to receipt."""
_BY_KIND: Final = (
    "name_id", "lane", "flags", "group_id", "stage", "microbatch", "peer", "step", "seq", "a", "b",
)  # fmt: skip
RECORDS: Final = (
    Column("kind", differences=False), Column("mark"), *(Column(name) for name in _BY_KIND),
    Column("start_ns", differences=False), Column("t1_ns"),
)  # fmt: skip
"""``kind``, ``mark`` and ``t1_ns`` in the order of the records, the others sorted by kind.
``start_ns``: t1 - t0; of an OP_DONE with its OP_ISSUE in the block, t0 less that one's; of a kind
in FOLLOWS, t0 less the t1 of the record before it in the block."""
FOLLOWS: Final = (Kind.ACTION, Kind.WAIT, Kind.PHASE)
"""Kinds whose begin is stored relative to another end: that takes fewer bytes than a duration."""
_FOLLOWS: Final = np.isin(np.arange(256), FOLLOWS)


def is_batch(payload: bytes) -> bool:
    """Return whether a payload is a record batch by its FRAME."""
    if len(payload) < _FRAME:
        return False
    count: int = wire.FRAME.unpack_from(payload)[2]
    return len(payload) == _FRAME + count * wire.RECORD_BYTES


def encode(groups: Sequence[Numbered]) -> list[Block]:
    """Return a block for each group: one process's batches, each of which ``is_batch``."""
    blocks: list[Block] = []
    part: list[Numbered] = []
    num_bytes = 0
    for group in groups:
        part.append(group)
        num_bytes += sum(len(message.payload) for message in group.messages)
        if num_bytes >= PART_BYTES:
            blocks += _encode(part)
            part, num_bytes = [], 0
    return [*blocks, *(_encode(part) if part else ())]


def _encode(groups: Sequence[Numbered]) -> list[Block]:
    payloads = [message.payload for group in groups for message in group.messages]
    heads = np.frombuffer(b"".join([payload[:_FRAME] for payload in payloads]), _FRAME_DTYPE)
    body = b"".join([memoryview(payload)[_FRAME:] for payload in payloads])
    sizes = np.array([len(group.messages) for group in groups], np.intp)
    counts = np.add.reduceat(heads["count"].astype(np.intp), columns.begins_of(sizes))
    tops = columns.encode(BATCHES, _batch_columns(groups, heads, sizes), sizes)
    records = np.frombuffer(body, RECORD_DTYPE)
    rows = columns.encode(RECORDS, _record_columns(records, counts), counts)
    return [block_of(group, top + row) for group, top, row in zip(groups, tops, rows, strict=True)]


@dataclass(frozen=True, slots=True)
class _Read:
    key: bytes
    data: bytes
    batches: Head
    records: Head

    @property
    def widths(self) -> tuple[bytes, bytes]:
        return self.batches.widths, self.records.widths


def decode(blocks: Sequence[tuple[bytes, bytes]]) -> Numbered:
    """Return the batches of all blocks of a chunk, each (key, data). Raises ValueError."""
    read = [_read(key, data) for key, data in blocks]
    if sum(block.batches.count for block in read) > MAX_MESSAGES:
        raise ValueError("a chunk of too many batches")
    if sum(block.records.count for block in read) > MAX_RECORDS:
        raise ValueError("a chunk of too many records")
    parts = [list(part) for _, part in groupby(read, lambda block: block.widths)]
    if len(parts) > MAX_PARTS:
        raise ValueError("blocks of too many forms")
    found = Numbered([], [])
    for part in parts:
        found.extend(_decode(part))
    return found


def _decode(blocks: Sequence[_Read]) -> Numbered:
    """Return the batches of blocks whose columns have the same widths."""
    batches = columns.decode(BATCHES, [(block.data, block.batches) for block in blocks])
    table = columns.decode(RECORDS, [(block.data, block.records) for block in blocks])
    counts, received = batches.column("count"), batches.column("received_ns")
    if len(counts) and (counts.min() < 0 or counts.max() > MAX_RECORDS):
        raise ValueError("a batch of more records than there are")
    if (_sums(counts, batches.counts) != table.counts).any():
        raise ValueError("another number of records than the batches say")
    if len(received) and received.min() < 0:
        raise ValueError("a time before all clocks")
    payloads = _payloads(_heads(batches, counts, received), counts, _records(table).tobytes())
    of = np.repeat(np.arange(len(blocks)), batches.counts).tolist()
    return Numbered(batches.column("sequence").tolist(), [
        Message(blocks[block].key, payload, time)
        for block, payload, time in zip(of, payloads, received.tolist(), strict=True)
    ])  # fmt: skip


def _read(key: bytes, data: bytes) -> _Read:
    batches = columns.head_of(BATCHES, data, 0)
    records = columns.head_of(RECORDS, data, batches.end)
    if records.end != len(data):
        raise ValueError("a block with more bytes than rows")
    return _Read(key, data, batches, records)


def _payloads(heads: bytes, counts: Ints, body: bytes) -> list[bytes]:
    ends = np.cumsum(counts) * wire.RECORD_BYTES
    begins = ends - counts * wire.RECORD_BYTES
    return [
        heads[number * _FRAME : (number + 1) * _FRAME] + body[begin:end]
        for number, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True))
    ]


def _sums(values: Ints, counts: Rows) -> Ints:
    total = np.concatenate((np.zeros(1, np.int64), np.cumsum(values)))
    begins = columns.begins_of(counts)
    sums: Ints = total[begins + counts] - total[begins]
    return sums


# ---------------------------------------------------------------------- batches


def _batch_columns(
    groups: Sequence[Numbered], heads: NDArray[Any], sizes: Rows
) -> Iterator[Ints]:  # fmt: skip
    received = np.array([m.received_ns for group in groups for m in group.messages], np.int64)
    counts = heads["count"].astype(np.int64)
    yield np.array([number for group in groups for number in group.numbers], np.int64)
    yield received
    yield heads["version"].astype(np.int64)
    yield heads["flags"].astype(np.int64)
    yield heads["first"].view(np.int64) - _before(counts, sizes)
    yield heads["dropped"].view(np.int64)
    yield counts
    yield received - heads["sent_ns"]


def _heads(batches: Table, counts: Ints, received: Ints) -> bytes:
    heads = np.empty(len(counts), _FRAME_DTYPE)
    heads["version"], heads["flags"] = batches.column("version"), batches.column("flags")
    heads["count"] = counts
    heads["first"] = (batches.column("skipped") + _before(counts, batches.counts)).view(np.uint64)
    heads["dropped"] = batches.column("dropped").view(np.uint64)
    heads["sent_ns"] = received - batches.column("age_ns")
    return heads.tobytes()


def _before(counts: Ints, sizes: Rows) -> Ints:
    total = np.cumsum(counts) - counts
    begins = np.minimum(columns.begins_of(sizes), max(len(total) - 1, 0))
    if not len(total):
        return total
    return total - np.repeat(total[begins], sizes)


# ---------------------------------------------------------------------- records


def _record_columns(records: NDArray[Any], counts: Rows) -> Iterator[Ints]:
    of = np.repeat(np.arange(len(counts)), counts)
    kinds, ends = records["kind"], records["t1_ns"].copy()
    order = _by_kind(kinds, of)
    yield kinds.astype(np.int64)
    yield records["mark"].view(np.int64)
    for name in _BY_KIND:
        yield records[name][order].astype(np.int64)
    kinds, begins = kinds[order], records["t0_ns"][order]
    starts = ends[order] - begins
    done, issue = _pairs(kinds, records, order, of)
    starts[done] = begins[done] - begins[issue]
    gaps = np.flatnonzero(_FOLLOWS[kinds])
    starts[gaps] = begins[gaps] - _ends_before(ends, counts)[order[gaps]]
    yield starts
    yield ends


def _records(table: Table) -> NDArray[Any]:
    kinds, ends = table.column("kind").astype(np.uint8), table.column("t1_ns")
    records = np.empty(len(kinds), RECORD_DTYPE)
    records["kind"], records["t1_ns"] = kinds, ends
    records["mark"] = table.column("mark").view(np.uint64)
    of = np.repeat(np.arange(len(table.counts)), table.counts)
    order = _by_kind(kinds, of)
    for name in _BY_KIND:
        records[name][order] = table.column(name)
    kinds, starts = kinds[order], table.column("start_ns")
    begins = ends[order] - starts
    gaps = np.flatnonzero(_FOLLOWS[kinds])
    begins[gaps] = starts[gaps] + _ends_before(ends, table.counts)[order[gaps]]
    done, issue = _pairs(kinds, records, order, of)
    begins[done] = begins[issue] + starts[done]
    records["t0_ns"][order] = begins
    return records


def _ends_before(ends: Ints, counts: Rows) -> Ints:
    """Return the end of the previous record in the block for each record; for the first its own."""
    before = np.empty_like(ends)
    before[1:] = ends[:-1]
    first = columns.begins_of(counts)[counts > 0]
    before[first] = ends[first]
    return before


def _by_kind(kinds: NDArray[np.uint8], of: Rows) -> Rows:
    """Return the order of the rows by block and kind, otherwise unchanged."""
    few = not len(of) or of[-1] < 256
    places: NDArray[Any] = of.astype(np.uint16 if few else np.uint32)  # 16 bits: a radix sort
    return np.argsort(places << 8 | kinds, kind="stable")


def _pairs(
    kinds: NDArray[np.uint8], records: NDArray[Any], order: Rows, of: Rows
) -> tuple[Rows, Rows]:  # fmt: skip
    """Return sorted rows of OP_DONE, and for each the OP_ISSUE of the same op: both records have
    its begin. Pairs may be wrong for malformed data; they are the same in both directions."""
    issued, done = np.flatnonzero(kinds == Kind.OP_ISSUE), np.flatnonzero(kinds == Kind.OP_DONE)
    if not len(issued) or not len(done):
        return done[:0], issued[:0]
    begun, ended = (_op_keys(records, order[rows], of[rows]) for rows in (issued, done))
    by_key = np.argsort(begun, kind="stable")
    issued, begun = issued[by_key], begun[by_key]
    at = np.maximum(np.searchsorted(begun, ended, side="right") - 1, 0)
    same = begun[at] == ended
    return done[same], issued[at[same]]


def _op_keys(records: NDArray[Any], rows: Rows, of: Rows) -> Ints:
    """Return a key that identifies an op: block, group, P2P flag, sequence number."""
    p2p = (records["flags"][rows] & np.uint16(Flag.P2P)) != 0
    keys: Ints = of << 49 | records["group_id"][rows].astype(np.int64) << 33
    keys |= p2p.astype(np.int64) << 32 | records["seq"][rows].astype(np.int64)
    return keys
