"""Blocks give back what went into them, whatever that was; what they claim is not believed."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest

from pardbg.events.decode import RECORD_DTYPE
from pardbg.session import columns, message_blocks, record_blocks
from pardbg.session.columns import Column
from pardbg.session.message_blocks import MAX_MESSAGES, Numbered
from pardbg.session.repair import repair
from pardbg.session.writer import SessionWriter
from pardbg.store.source import Message
from pardbg_agent import wire
from tests.fuzz.mutate import small_session
from tests.harness import whole_messages
from tests.unit.hub.test_writing import FACTS

ONE = (Column("x"),)


def frame(num: int, body: bytes, rng: random.Random) -> bytes:
    return wire.FRAME.pack(
        rng.choice((1, 1, 9)), rng.choice((0, 1, 65535)), num, rng.getrandbits(rng.choice((8, 64))),
        rng.getrandbits(rng.choice((1, 64))), rng.getrandbits(64) - (1 << 63),
    ) + body  # fmt: skip


def odd_records(num: int, rng: random.Random) -> bytes:
    """Of every kind, also unknown ones; times that go back, marks of nothing, noise."""
    made = np.zeros(num, RECORD_DTYPE)
    for name in made.dtype.names or ():
        bits = rng.choice((0, 1, 7, 8 * made.dtype[name].itemsize))
        values = [rng.getrandbits(bits) if bits else 0 for _ in range(num)]
        made[name] = np.array(values, np.uint64).astype(made.dtype[name])
    if rng.random() < 0.7:
        made["kind"] = [rng.choice((1, 2, 2, 3, 3, 4, 200)) for _ in range(num)]
        made["seq"] = [rng.randrange(4) for _ in range(num)]
    return made.tobytes()


def odd_message(rng: random.Random, received_ns: int) -> Message:
    key = rng.choice((b"D", b"O", b"C", b"S", b"X", b"", b"R", b"R0.a.1", b"R0.b.2", b"D0.a.1"))
    num = rng.choice((0, 0, 1, 5, 40))
    payload = frame(num, odd_records(num, rng), rng)
    if key[:1] != b"R" or rng.random() < 0.2:  # records that do not fit their FRAME, too
        payload = payload[: rng.randrange(len(payload) + 1)]
    return Message(key, payload, received_ns)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_read_is_what_was_written(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    times = sorted(rng.getrandbits(rng.choice((3, 62))) for _ in range(rng.choice((0, 1, 9, 60))))
    messages = [odd_message(rng, t) for t in times]
    writer = SessionWriter(tmp_path / "s.mcap", FACTS)
    for message in messages:
        writer.write(message.key, message.payload, message.received_ns)
    writer.close()
    assert list(whole_messages(tmp_path / "s.mcap")) == messages


def table(records: np.ndarray) -> list[int]:
    """The column of begins of one process's records."""
    *_, starts, _ = record_blocks._record_columns(records, np.array([len(records)]))
    return starts.tolist()


def test_an_op_begins_once() -> None:
    """OP_DONE has its op's begin again, which costs nothing where OP_ISSUE is in the block."""
    num, rng = 200, np.random.default_rng(1)
    records = np.zeros(2 * num, RECORD_DTYPE)
    records["kind"] = np.repeat([wire.Kind.OP_ISSUE, wire.Kind.OP_DONE], num)
    records["seq"] = np.tile(np.arange(num), 2)
    records["t0_ns"] = np.tile(rng.integers(0, 1 << 40, num), 2)
    records["t1_ns"] = records["t0_ns"] + 5
    assert table(records) == [5] * num + [0] * num
    records["seq"][num:] += num  # of other ops
    assert table(records) == [5] * 2 * num


def test_a_wait_begins_where_the_record_before_it_ended() -> None:
    """Ends at 100, 220 and 350; the waits begin 7 and 20 ns after that before them. By kind: the
    waits, then the step of 90 ns."""
    records = np.zeros(3, RECORD_DTYPE)
    records["kind"] = [wire.Kind.STEP, wire.Kind.WAIT, wire.Kind.WAIT]
    records["t0_ns"], records["t1_ns"] = [10, 107, 240], [100, 220, 350]
    assert table(records) == [7, 20, 90]
    assert table(records[1:]) == [107 - 220, 20]  # the first of a block: to its own end


def rows(values: list[int], counts: list[int]) -> list[bytes]:
    return columns.encode(ONE, [np.array(values, np.int64)], np.array(counts, np.intp))


@pytest.mark.parametrize(
    "values", [[], [0], [0, 0, 0], [-1, 1], [127, 128], [-(1 << 63), (1 << 63) - 1, 0]]
)
def test_columns_hold_every_number(values: list[int]) -> None:
    for counts in ([len(values)], [0, len(values), 0], [1] * len(values)):
        if not counts:
            continue
        blocks = rows(values, counts)
        parts = [(block, columns.head_of(ONE, block, 0)) for block in blocks]
        assert columns.decode(ONE, parts).column("x").tolist() == values


def test_a_column_is_as_wide_as_its_largest_difference() -> None:
    """-64 to 63 fold to 0 to 127, and -128 to 127 to 0 to 255: one byte each; 128 needs two.
    A block has a u32, a byte for the width and 8 for the first number."""
    for largest, width in ((0, 0), (63, 1), (127, 1), (-128, 1), (128, 2), (-129, 2)):
        (block,) = rows([1 << 40, 1 << 40, (1 << 40) + largest], [3])
        assert len(block) == 4 + 1 + 8 + 3 * width


def batch(num: int = 3) -> Numbered:
    payload = wire.FRAME.pack(1, 0, num, 0, 0, 0) + bytes(num * wire.RECORD_BYTES)
    return Numbered([4, 5], [Message(b"R0.n0.1", payload, 9_000)] * 2)


def test_every_cut_of_a_block_is_refused() -> None:
    (block,) = record_blocks.encode([batch()])
    assert record_blocks.decode([(block.key, block.data)]) == batch()
    for end in range(len(block.data)):
        with pytest.raises(ValueError, match=r"\w"):
            record_blocks.decode([(block.key, block.data[:end])])
    with pytest.raises(ValueError, match="more bytes than rows"):
        record_blocks.decode([(block.key, block.data + b"x")])


@pytest.mark.parametrize("place", ["batches", "records"])
@pytest.mark.parametrize("claim", [1, 1 << 16, (1 << 20) + 1, 1 << 31, (1 << 32) - 1])
def test_a_count_is_checked_before_it_is_believed(place: str, claim: int) -> None:
    """As many rows as it likes, in no bytes: all widths are 0."""
    (block,) = record_blocks.encode([batch()])
    at = 0 if place == "batches" else columns.head_of(record_blocks.BATCHES, block.data, 0).end
    data = bytearray(block.data)
    struct.pack_into("<I", data, at, claim)
    with pytest.raises(ValueError, match=r"\w"):
        record_blocks.decode([(block.key, bytes(data))])


def test_every_cut_of_a_block_of_messages_is_refused() -> None:
    messages = Numbered([7, 9], [Message(b"O", b"\x80", 5), Message(b"O", b"\x81\x01\x02", 9)])
    block = message_blocks.encode(messages)
    assert message_blocks.decode(b"O", block.data) == messages
    for data in (*(block.data[:end] for end in range(len(block.data))), block.data + b"x"):
        with pytest.raises(ValueError, match=r"\w"):
            message_blocks.decode(b"O", data)


@pytest.mark.parametrize(
    "head",
    [
        b"", b"\xc0", b"\x93\x91\x01\x91\x01\x91\xff", b"\x93\x91\x01\x90\x90", b"\x91" * 900,
        b"\xdd\xff\xff\xff\xff", b"\x93\x91\xc0\x91\x01\x91\x00", b"\x93\x91\xff\x91\x01\x91\x00",
    ],
)  # fmt: skip
def test_a_head_that_is_none_is_refused(head: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        message_blocks.decode(b"O", head)


def test_a_process_of_many_is_found_by_its_block(tmp_path: Path) -> None:
    """Three hundred processes, more than a byte counts, of which some share a batch of nothing."""
    writer, expected = SessionWriter(tmp_path / "s.mcap", FACTS), []
    for number in range(600):
        num = number % 5
        head = wire.FRAME.pack(1, 0, num, number, 0, 0)
        records = np.zeros(num, RECORD_DTYPE)
        records["t1_ns"] = records["mark"] = number
        expected.append(Message(b"R0.n.%d" % (number % 300), head + records.tobytes(), number))
        writer.write(expected[-1].key, expected[-1].payload, number)
    writer.close()
    assert list(whole_messages(tmp_path / "s.mcap")) == expected


def test_many_messages_go_into_many_chunks(tmp_path: Path) -> None:
    path = tmp_path / "s.mcap"
    writer = SessionWriter(path, FACTS)
    for at in range(MAX_MESSAGES + 10):
        writer.write(b"O", b"", at)
    writer.close()
    assert [m.received_ns for m in whole_messages(path)] == list(range(MAX_MESSAGES + 10))


def test_the_summary_names_the_channels_of_a_first_chunk_that_is_lost(tmp_path: Path) -> None:
    """Repair keeps every other chunk."""
    path, out = small_session(tmp_path / "s.mcap"), tmp_path / "r.mcap"
    before, data = list(whole_messages(path)), bytearray(path.read_bytes())
    first = data.index(b"\x04\x00\x00\x00zstd")
    data[first + 20] ^= 0xFF
    path.write_bytes(data)
    repair(path, out)
    kept = [m for m in whole_messages(out) if b"repaired" not in m.payload]
    assert kept == before[6:]  # chunks of six messages
