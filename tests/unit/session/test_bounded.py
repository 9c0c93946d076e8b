"""A small file is small in memory, whatever it says: what is read is bounded at the door."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest
import zstandard
from mcap.data_stream import RecordBuilder
from mcap.records import Channel, Chunk
from mcap.records import Message as McapMessage

from pardbg.events.decode import Malformed, decode_map, leading
from pardbg.session import reader
from pardbg.session.appending import built
from pardbg.session.reader import load
from pardbg.session.repair import repair
from pardbg.session.writer import SessionWriter
from pardbg_agent import wire
from tests.siege.hostile import FACTS

ONE = wire.RECORD.pack(7, 5, 0, 0, 5, 6, 0, 0, wire.NO_GROUP, -1, -1, -1, 0, 0, 1)
BATCH = 1 << 18
"""Records of a message: 16 MiB, a few kB in the file."""


def test_records_that_are_packed_too_well_are_no_recording(tmp_path: Path) -> None:
    """64 MiB are free, and a record counts four times: the first batch is read, no other."""
    path = tmp_path / "s.mcap"
    writer = SessionWriter(path, FACTS)
    writer.write(b"D0.n.1", msgpack.packb({"k": "process", "rank": 0}), 1)
    writer.flush()
    for number in range(4):
        head = wire.FRAME.pack(wire.PROTOCOL_VERSION, 0, BATCH, number * BATCH, 0, 0)
        writer.write(b"R0.n.1", head + ONE * BATCH, 2)
        writer.flush()
    writer.close(0)
    assert path.stat().st_size < 32 << 10
    store = load(path)
    assert store.truncated and store.procs["0.n.1"].rank == 0
    assert store.procs["0.n.1"].num_records <= BATCH


def test_thousands_of_ranks_that_do_the_same_are_read_whole(tmp_path: Path) -> None:
    """2,000 of 500 records each, 64 MB: a thousand times smaller in the file."""
    path = tmp_path / "s.mcap"
    writer = SessionWriter(path, FACTS)
    head = wire.FRAME.pack(wire.PROTOCOL_VERSION, 0, 500, 0, 0, 0)
    for rank in range(2000):
        writer.write(b"R0.n.%d" % rank, head + ONE * 500, 2)
    writer.close(0)
    assert path.stat().st_size < 600 << 10
    store = load(path)
    assert not store.truncated
    assert sum(process.num_records for process in store.procs.values()) == 1_000_000


def test_what_compresses_well_by_nature_is_read_whole(tmp_path: Path) -> None:
    """60,000 lines that are alike, 40 MiB: some hundred times smaller in the file."""
    path = tmp_path / "s.mcap"
    writer = SessionWriter(path, FACTS)
    for number in range(60_000):
        line = {"n": number, "t_ns": number, "rank": 0, "stream": "stdout", "text": "x" * 600}
        writer.write(b"O", msgpack.packb(line), number)
    writer.close(0)
    store = load(path)
    assert not store.truncated and len(store.output) == 60_000


def _chunk(records: RecordBuilder) -> Chunk:
    plain = built(records)
    packed = zstandard.ZstdCompressor(1).compress(plain)
    return Chunk("zstd", packed, 1, 1, 0, len(plain))


def test_a_chunk_of_too_many_messages_is_refused_before_they_are_made() -> None:
    records = RecordBuilder()
    for _ in range((1 << 17) + 1):
        McapMessage(1, 1, b"", 1, 1).write(records)
    with pytest.raises(ValueError, match="messages"):
        reader.unpack_chunk(_chunk(records))


def test_so_is_a_chunk_of_too_many_records_of_other_kinds() -> None:
    """Of 9 bytes each: 7 million would be in a chunk of 64 MiB, a few kB in the file."""
    plain = bytes(9 * (reader.MAX_OTHERS + 1))
    packed = zstandard.ZstdCompressor(1).compress(plain)
    with pytest.raises(ValueError, match="messages"):
        reader.unpack_chunk(Chunk("zstd", packed, 1, 1, 0, len(plain)))


def test_a_repair_unpacks_no_more_than_a_file_of_that_size_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten chunks of 30 MiB, a few kB each in the file; 2 x 64 MiB are free."""
    path, unpacked, real = tmp_path / "s.mcap", 0, reader.unpack_chunk
    writer = SessionWriter(path, FACTS)
    writer.write(b"D0.n.1", msgpack.packb({"k": "process", "rank": 0}), 1)
    writer.close(0)
    plain = RecordBuilder()
    Channel(9, "x", "", {"key": "O"}, 0).write(plain)
    McapMessage(9, 1, bytes(30 << 20), 1, 1).write(plain)
    body = built(plain)
    bomb = RecordBuilder()
    packed = zstandard.ZstdCompressor(1).compress(body)
    Chunk("zstd", packed, 1, 1, zlib.crc32(body), len(body)).write(bomb)
    whole = path.read_bytes()
    path.write_bytes(whole[:-300] + built(bomb) * 10 + whole[-300:])

    def count(chunk: Chunk) -> object:
        nonlocal unpacked
        unpacked += chunk.uncompressed_size
        return real(chunk)

    monkeypatch.setattr(reader, "unpack_chunk", count)
    repair(path, tmp_path / "r.mcap")
    assert load(tmp_path / "r.mcap").procs["0.n.1"].rank == 0
    assert unpacked < 400 << 20  # surveyed once or twice, then copied


def test_a_channel_of_a_thousand_names_is_none() -> None:
    records = RecordBuilder()
    Channel(1, "x", "", {str(i): "" for i in range(1000)}, 0).write(records)
    assert reader.unpack_chunk(_chunk(records)) == []


@pytest.mark.parametrize("decode", [decode_map, lambda said: leading(said, "none")])
@pytest.mark.parametrize("inner", [b"\x80", b"\x90"])
def test_a_message_of_very_many_empty_maps_or_lists_is_malformed(
    decode: Callable[[bytes], object], inner: bytes
) -> None:
    """8 lists of 100,000: a byte each in the message, 64 and more in memory."""
    rows = b"\x98" + (b"\xdd" + (100_000).to_bytes(4, "big") + inner * 100_000) * 8
    with pytest.raises(Malformed):
        decode(b"\x81\xa1v" + rows)


def test_a_thousand_ranks_stacks_are_a_message() -> None:
    frames = [["/site/train.py", 12, "step"]] * 30
    said = {"stacks": {str(rank): frames for rank in range(1024)}}
    assert decode_map(msgpack.packb(said)) == said
