"""A pack gives back what went into it, whatever that was; what it claims is not believed."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest

from pardbg.events.decode import RECORD_DTYPE
from pardbg.session import columns, pack
from pardbg.session.columns import Bytes
from pardbg.session.reader import load
from pardbg.session.repair import repair
from pardbg.session.writer import SessionWriter, resume, whole_messages
from pardbg.store.source import Message
from pardbg_agent import wire
from tests.fuzz.mutate import small_session
from tests.unit.hub.test_writing import FACTS, MESSAGES

FORMAT_1 = Path(__file__).parents[2] / "data/sessions/format1.mcap"
"""MESSAGES as the writer of format 1 wrote them, in two chunks, closed with code 3."""


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
def test_what_is_unpacked_is_what_was_packed(seed: int) -> None:
    rng = random.Random(seed)
    times = sorted(rng.getrandbits(rng.choice((3, 62))) for _ in range(rng.choice((0, 1, 9, 60))))
    messages = [odd_message(rng, t) for t in times]
    assert pack.unpack(pack.pack(messages)) == messages


def test_an_op_begins_once() -> None:
    """OP_DONE says its op's begin again, which costs nothing: as many bytes for begins that are
    known from OP_ISSUE as for begins that are all the same."""
    num = 200
    rng = np.random.default_rng(1)
    records = np.zeros(2 * num, RECORD_DTYPE)
    records["kind"] = np.repeat([wire.Kind.OP_ISSUE, wire.Kind.OP_DONE], num)
    records["seq"] = np.tile(np.arange(num), 2)
    records["t1_ns"] = np.arange(2 * num)
    records["t0_ns"] = records["t1_ns"]
    procs = np.zeros(2 * num, np.uint16)
    records["t0_ns"][num:] = records["t0_ns"][:num]
    same = len(columns.pack(records, procs))
    issued = rng.integers(0, 1 << 40, num)
    records["t0_ns"] = np.tile(issued, 2)
    records["t1_ns"][:num] = issued
    packed = columns.pack(records, procs)
    assert (columns.unpack(Bytes(packed), procs) == records).all()
    # 6 bytes for each of the 2 x 200 changes of t1, which went from 0 or 1 to 40 bits and a sign
    assert len(packed) - same <= 6 * 2 * num


@pytest.mark.parametrize(
    "values", [[], [0], [0, 0, 0], [-1, 1], [127, 128], [-(1 << 63), (1 << 63) - 1, 0]]
)
def test_columns_hold_every_number(values: list[int]) -> None:
    numbers = np.array(values, np.int64)
    left = Bytes(columns.planes(columns.changes(numbers)))
    assert columns.summed(left.column(len(values))).tolist() == values and not left.rest


def test_a_column_is_as_wide_as_its_largest_number() -> None:
    """-64 to 63 fold to 0 to 127, and -128 to 127 to 0 to 255: one byte each; 128 needs two."""
    for largest, width in ((0, 0), (63, 1), (127, 1), (-128, 1), (128, 2), (-129, 2)):
        assert len(columns.planes(np.array([0, 0, largest]))) == 1 + 3 * width


@pytest.mark.parametrize("field", [0, 1, 2])
@pytest.mark.parametrize("claim", [1, 1 << 16, (1 << 20) - 1, 1 << 31, (1 << 32) - 1])
def test_a_claim_is_checked_before_it_is_believed(field: int, claim: int) -> None:
    """Messages, records, bytes of keys: as large as it likes, in a few bytes."""
    head = list(struct.unpack_from("<III", pack.pack(MESSAGES)))
    head[field] = claim
    body = pack.pack(MESSAGES)[12:]
    with pytest.raises(ValueError, match=r"\w"):
        pack.unpack(struct.pack("<III", *head) + body)


def test_every_cut_of_a_pack_is_refused() -> None:
    whole = pack.pack([*MESSAGES, Message(b"R0.n0.1", frame_of_zeros(3), 9_000)])
    for end in range(len(whole)):
        with pytest.raises(ValueError, match=r"\w"):
            pack.unpack(whole[:end])
    with pytest.raises(ValueError, match="more bytes than messages"):
        pack.unpack(whole + b"x")


def frame_of_zeros(num: int) -> bytes:
    return wire.FRAME.pack(1, 0, num, 0, 0, 0) + bytes(num * wire.RECORD_BYTES)


def test_many_messages_go_into_many_packs(tmp_path: Path) -> None:
    path = tmp_path / "s.mcap"
    writer = SessionWriter(path, FACTS)
    for at in range(pack.MAX_MESSAGES + 10):
        writer.write(b"O", b"", at)
    writer.close()
    assert [m.received_ns for m in whole_messages(path)] == list(range(pack.MAX_MESSAGES + 10))


def test_a_file_of_format_1_opens(tmp_path: Path) -> None:
    assert list(whole_messages(FORMAT_1)) == MESSAGES
    assert not load(FORMAT_1).truncated


def test_repair_makes_a_file_of_format_2_of_it_and_adds_nothing(tmp_path: Path) -> None:
    out = tmp_path / "r.mcap"
    assert repair(FORMAT_1, out).text() == "kept 4 messages in 2 chunks; nothing was lost"
    assert list(whole_messages(out)) == MESSAGES


def test_a_killed_writers_file_of_format_1_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "s.mcap"
    data = FORMAT_1.read_bytes()
    second = data.index(b"\x04\x00\x00\x00zstd", data.index(b"\x04\x00\x00\x00zstd") + 1)
    path.write_bytes(data[: second + 50])
    kept = list(whole_messages(path))
    assert kept == MESSAGES[:2]
    writer = resume(path, FACTS)
    writer.write(b"O", b"more", 5_000)
    writer.close()
    assert list(whole_messages(path)) == [*kept, Message(b"O", b"more", 5_000)]


def test_each_chunk_can_be_read_alone(tmp_path: Path) -> None:
    """Without the file's beginning and without its summary, repair keeps every other chunk."""
    path, out = small_session(tmp_path / "s.mcap"), tmp_path / "r.mcap"
    before, data = list(whole_messages(path)), bytearray(path.read_bytes())
    first = data.index(b"\x04\x00\x00\x00zstd")
    data[first + 20] ^= 0xFF  # the first chunk
    path.write_bytes(data[: data.rindex(b"\x04\x00\x00\x00zstd") + 200])  # and no summary
    repair(path, out)
    kept = [m for m in whole_messages(out) if m.key != b"C" and b"truncated" not in m.payload]
    assert kept and kept == [m for m in before if m in kept]
    assert before[6] in kept  # chunks of six messages: the second chunk's first one
