"""The messages of one chunk as one: their heads, the records' columns, the maps as they came.

Pure: bytes in, bytes out. What is unpacked is what was packed, message by message, in its order.
Nothing here is larger than the limits say, whatever the bytes claim: ValueError.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pardbg.events.decode import RECORD_DTYPE
from pardbg.session import columns
from pardbg.session.columns import Bytes, Ints, changes, planes, summed
from pardbg.store.source import Message
from pardbg_agent import wire

MAX_MESSAGES: Final = 1 << 16
"""In one pack; a writer closes its chunk before."""
MAX_UNPACKED_BYTES: Final = 64 << 20
"""Payloads of one pack, together; more is damage or malice."""
_HEAD: Final = struct.Struct("<III")
"""Messages, records, bytes of the table of keys."""
_FRAME: Final = wire.FRAME.size
_RECORD: Final = wire.RECORD_BYTES
_FRAME_DTYPE: Final = np.dtype(
    [("version", "<u2"), ("flags", "<u2"), ("count", "<u4"), ("first", "<u8"), ("dropped", "<u8"),
     ("sent_ns", "<i8")]
)  # fmt: skip
assert _FRAME_DTYPE.itemsize == _FRAME


def pack(messages: Sequence[Message]) -> bytes:
    """Pack at most MAX_MESSAGES messages as one payload."""
    keys = sorted({message.key for message in messages})
    number = {key: i for i, key in enumerate(keys)}
    which = np.fromiter((number[m.key] for m in messages), "<u2", len(messages))
    received = np.fromiter((m.received_ns for m in messages), np.int64, len(messages))
    framed = np.fromiter((_is_frame(m) for m in messages), np.bool_, len(messages))
    frames = [m for m, is_frame in zip(messages, framed, strict=True) if is_frame]
    frames.sort(key=lambda message: message.key)
    others = [m.payload for m, is_frame in zip(messages, framed, strict=True) if not is_frame]
    heads = np.frombuffer(b"".join(m.payload[:_FRAME] for m in frames), _FRAME_DTYPE)
    body = b"".join([memoryview(m.payload)[_FRAME:] for m in frames])
    records = np.frombuffer(body, RECORD_DTYPE)
    order = _frame_order(which[framed])
    table = b"".join(len(key).to_bytes(2, "little") + key for key in keys)
    return b"".join((
        _HEAD.pack(len(messages), len(records), len(table)), table,
        which.tobytes(), framed.astype(np.uint8).tobytes(), planes(changes(received)),
        _pack_heads(heads, received[framed][order], which[framed][order]),
        planes(np.fromiter(map(len, others), np.int64, len(others))),
        columns.pack(records, np.repeat(which[framed][order], heads["count"])),
        *others,
    ))  # fmt: skip


def unpack(data: bytes) -> list[Message]:
    """Return the packed messages. Raises ValueError."""
    left = Bytes(data)
    num, num_records, table = _HEAD.unpack(left.take(_HEAD.size))
    if num > MAX_MESSAGES or num_records * _RECORD > MAX_UNPACKED_BYTES:
        raise ValueError("a pack of too much")
    keys = _keys(left.take(table))
    which = np.frombuffer(left.take(2 * num), "<u2")
    framed = np.frombuffer(left.take(num), np.uint8) != 0
    if num and int(which.max()) >= len(keys):
        raise ValueError("a message without a key")
    received = summed(left.column(num))
    if num and (int(received.min()) < 0):
        raise ValueError("a time before all clocks")
    order = _frame_order(which[framed])
    procs = which[framed][order]
    heads = _unpack_heads(left, received[framed][order], procs)
    counts = heads["count"].astype(np.int64)
    lengths = left.column(num - len(heads))
    _check(lengths, counts, num_records, left.rest)
    records = columns.unpack(left, np.repeat(procs, counts))
    payloads = _payloads(left, lengths, heads, records.tobytes(), framed, order)
    named = [keys[i] for i in which]
    return [
        Message(key, payload, time)
        for key, payload, time in zip(named, payloads, received.tolist(), strict=True)
    ]


def _is_frame(message: Message) -> bool:
    """Records as FRAME says; anything else is kept as it is."""
    payload = message.payload
    if message.key[:1] != wire.Key.RECORDS.value or len(payload) < _FRAME:
        return False
    count: int = wire.FRAME.unpack_from(payload)[2]
    return len(payload) == _FRAME + count * _RECORD


def _frame_order(which: NDArray[Any]) -> NDArray[np.intp]:
    """The frames of each process together, else as they came."""
    return np.argsort(which, kind="stable")


def _follows(heads: NDArray[Any], procs: NDArray[Any]) -> Ints:
    """Of each frame, 1 where the one before is of the same process: its records go on there."""
    made = np.zeros(len(heads), np.int64)
    made[1:] = procs[1:] == procs[:-1]
    return made


def _pack_heads(heads: NDArray[Any], received: Ints, procs: NDArray[Any]) -> bytes:
    follows = _follows(heads, procs)
    skipped = changes(heads["first"].view(np.int64) if len(heads) else np.zeros(0, np.int64))
    skipped[1:] -= heads["count"][:-1].astype(np.int64) * follows[1:]
    return b"".join((
        planes(changes(heads["version"])), planes(changes(heads["flags"])),
        planes(heads["count"].astype(np.int64)), planes(skipped),
        planes(changes(heads["dropped"])), planes(received - heads["sent_ns"]),
    ))  # fmt: skip


def _unpack_heads(left: Bytes, received: Ints, procs: NDArray[Any]) -> NDArray[Any]:
    count = len(received)
    heads = np.empty(count, _FRAME_DTYPE)
    heads["version"], heads["flags"] = summed(left.column(count)), summed(left.column(count))
    heads["count"] = left.column(count)
    skipped = left.column(count)
    skipped[1:] += heads["count"][:-1].astype(np.int64) * _follows(heads, procs)[1:]
    heads["first"] = summed(skipped).view(np.uint64)
    heads["dropped"] = summed(left.column(count)).view(np.uint64)
    heads["sent_ns"] = received - left.column(count)
    return heads


def _keys(table: bytes) -> list[bytes]:
    keys, left = [], Bytes(table)
    while left.rest:
        keys.append(left.take(int.from_bytes(left.take(2), "little")))
    return keys


def _check(lengths: Ints, counts: Ints, num_records: int, rest: int) -> None:
    """Check what the payloads will take before they take it. Every record and every byte of the
    other payloads has its own byte in what is left."""
    if int(counts.sum()) != num_records or num_records > rest:
        raise ValueError("another number of records than the frames say")
    if len(lengths) and (int(lengths.min()) < 0 or int(lengths.max()) > rest):
        raise ValueError("a payload longer than what is there")
    if int(lengths.sum()) + num_records > rest:
        raise ValueError("payloads longer than what is there")


def _payloads(
    left: Bytes, lengths: Ints, heads: NDArray[Any], body: bytes, framed: NDArray[np.bool_],
    order: NDArray[np.intp],
) -> list[bytes]:  # fmt: skip
    """All payloads as the messages came; ``heads`` and ``body`` are in the order of ``order``."""
    ends = np.cumsum(heads["count"].astype(np.int64)) * _RECORD
    begins = ends - heads["count"].astype(np.int64) * _RECORD
    tops = heads.tobytes()
    frames: list[bytes] = [b""] * len(heads)
    for i, (place, begin, end) in enumerate(
        zip(order.tolist(), begins.tolist(), ends.tolist(), strict=True)
    ):
        frames[place] = tops[i * _FRAME : (i + 1) * _FRAME] + body[begin:end]
    others = iter([left.take(length) for length in lengths.tolist()])
    if left.rest:
        raise ValueError("more bytes than messages")
    waiting = iter(frames)
    return [next(waiting) if is_frame else next(others) for is_frame in framed.tolist()]
