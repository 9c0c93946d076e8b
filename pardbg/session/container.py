"""The MCAP records of a session file: chunks and metadata as they come, and the summary at its end,
which is read without reading the rest.

A chunk has an entry in the file's index, its messages have none: to know what is in a chunk it
must be unpacked anyway.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, BinaryIO, Final

import zstandard
from mcap.data_stream import ReadDataStream, RecordBuilder
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.records import (
    Channel,
    Chunk,
    ChunkIndex,
    DataEnd,
    Footer,
    Header,
    Metadata,
    MetadataIndex,
    Schema,
    Statistics,
    SummaryOffset,
)

MAGIC: Final = bytes((137, 77, 67, 65, 80, 48, 13, 10))
MAX_METADATA_BYTES: Final = 1 << 20
MAX_SUMMARY_BYTES: Final = 256 << 20
"""An index entry is about 100 bytes per chunk of 1 MiB: this is enough for 2 TiB."""
_FOOTER: Final = struct.Struct("<BQQQI")
_DATA_END: Final = struct.Struct("<BQI")
_RECORD: Final = struct.Struct("<BQ")
"""Opcode and length of any record."""
_CHUNK: Final = struct.Struct("<BQQQQI8s")
"""Head of a chunk: opcode, length, begin and end on the wall clock, unpacked size, CRC, compression
with its length."""
_ZSTD: Final = b"\x04\x00\x00\x00zstd"
_DAMAGED: Final = (
    McapError, OSError, ValueError, struct.error, KeyError, OverflowError, EOFError,
)  # fmt: skip
"""mcap's readers raise whatever struct, str and dict raise; sizes were checked before."""
_LISTS: Final = {
    Opcode.SCHEMA: (Schema, "schemas"), Opcode.CHANNEL: (Channel, "channels"),
    Opcode.METADATA_INDEX: (MetadataIndex, "metadata"),
}  # fmt: skip
"""Records a summary has many of, and where they go."""


@dataclass(slots=True)
class Summary:
    """What the summary says; records as ``mcap.records`` has them."""

    data_end: int
    """Where the data section ends: offset of its DataEnd record."""
    statistics: Statistics | None = None
    schemas: list[Schema] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    chunks: bytearray = field(default_factory=bytearray)
    """The index of the chunks as it stands in the file: 80 bytes each, as an object ten times
    that, and a run of days has a million."""
    metadata: list[MetadataIndex] = field(default_factory=list)
    known: bool = True
    """False: it has records of a kind that this reader does not know."""


def read_summary(file: BinaryIO) -> Summary | None:
    """Return the summary of an open file, whose place stays; None: it has none that makes sense."""
    at = file.tell()
    try:
        return _read(file)
    except _DAMAGED:
        return None
    finally:
        file.seek(at)


def _read(file: BinaryIO) -> Summary | None:
    size = file.seek(0, os.SEEK_END)
    tail = _FOOTER.size + len(MAGIC)
    if size < tail + _DATA_END.size:
        return None
    file.seek(size - tail)
    footer = file.read(tail)
    opcode, length, start, _offsets, _crc = _FOOTER.unpack_from(footer)
    if footer[-len(MAGIC) :] != MAGIC or opcode != Opcode.FOOTER or length != 20:
        return None
    if not _DATA_END.size <= start <= size - tail or size - tail - start > MAX_SUMMARY_BYTES:
        return None
    file.seek(start - _DATA_END.size)
    if _DATA_END.unpack(file.read(_DATA_END.size))[0] != Opcode.DATA_END:
        return None
    found = Summary(start - _DATA_END.size)
    for number, stream, length in records_in(file.read(size - tail - start)):
        opcode = Opcode(number)  # raises ValueError
        if opcode == Opcode.STATISTICS:
            found.statistics = Statistics.read(stream)
        elif opcode in _LISTS:
            kind, name = _LISTS[opcode]
            getattr(found, name).append(kind.read(stream))  # type: ignore[attr-defined]
        elif opcode == Opcode.CHUNK_INDEX:
            found.chunks += _RECORD.pack(number, length) + stream.read(length)
        elif opcode != Opcode.SUMMARY_OFFSET:
            found.known = False
    return found


def records_in(data: bytes) -> Iterator[tuple[int, ReadDataStream, int]]:
    """The kind of each record, the stream to read it from, and its length. Raises ValueError."""
    stream = ReadDataStream(BytesIO(data))
    while stream.count < len(data):
        opcode, length = stream.read1(), stream.read8()
        if length > len(data) - stream.count:
            raise ValueError("record longer than its section")
        end = stream.count + length
        yield opcode, stream, length
        if stream.count > end:
            raise ValueError("record longer than it says")
        stream.read(end - stream.count)


SMALL_BYTES: Final = 256 << 10
SMALL_LEVEL: Final = 9
LEVEL: Final = 3
"""zstd's: a small chunk is soon packed well; a large one comes from a run that says much, fast."""


def begin(file: BinaryIO, profile: str, library: str) -> Summary:
    """Write the file's head; the summary that ``write_summary`` is to end it with."""
    out = RecordBuilder()
    Header(profile, library).write(out)
    file.write(MAGIC + built(out))
    return _empty()


def _empty() -> Summary:
    return Summary(0, statistics=Statistics(
        attachment_count=0, channel_count=0, channel_message_counts={}, chunk_count=0,
        message_count=0, metadata_count=0, message_start_time=0, message_end_time=0,
        schema_count=0,
    ))  # fmt: skip


@dataclass(slots=True)
class Left:
    """What a killed writer left, as the heads of its records say."""

    summary: Summary
    """``data_end``: where its last whole chunk ends."""
    metadata: dict[str, str] = field(default_factory=dict)
    """Its first: the run's."""
    chunks: list[tuple[int, int, int]] = field(default_factory=list)
    """(offset, where it ends, bytes unpacked) of each whole one."""


def survey(file: BinaryIO, channel: Channel, size: int | None = None) -> Left:
    """Return what stands in the first ``size`` bytes of a file whose chunks have a message each,
    on ``channel``. Reads 64 bytes per chunk: ``file`` is best unbuffered."""
    size = os.fstat(file.fileno()).st_size if size is None else size
    left, at = Left(_empty()), len(MAGIC)
    left.summary.channels.append(channel)
    while (end := _look(file, left, at, size, {channel.id: 1})) is not None:
        at = end
    left.summary.data_end = at
    return left


def _look(
    file: BinaryIO, left: Left, at: int, size: int, counts: Mapping[int, int]
) -> int | None:  # fmt: skip
    """Take note of the record at ``at`` and return where it ends; None: the data end there."""
    file.seek(at)
    head = file.read(64)
    if len(head) < _CHUNK.size:
        return None
    opcode, length = _RECORD.unpack_from(head)
    end: int = at + _RECORD.size + length
    if end > size:
        return None
    if opcode == Opcode.CHUNK and head.startswith(_ZSTD, _CHUNK.size - len(_ZSTD)):
        _, _, begin_ns, end_ns, plain, _, _ = _CHUNK.unpack_from(head)
        packed = length - (_CHUNK.size - _RECORD.size) - 8
        _index_chunk(left.summary, at, end - at, packed, plain, begin_ns, end_ns)
        _count(left.summary, counts, begin_ns, end_ns)
        left.chunks.append((at, end, plain))
        return end
    if opcode == Opcode.HEADER and at == len(MAGIC):
        return end
    if opcode == Opcode.METADATA and not left.summary.metadata and length <= MAX_METADATA_BYTES:
        file.seek(at + _RECORD.size)
        try:
            found = Metadata.read(ReadDataStream(BytesIO(file.read(length))))
        except _DAMAGED:
            return None
        left.metadata = found.metadata
        _index_metadata(left.summary, at, end - at, found.name)
        return end
    return None  # the run's end, an index, or nothing that makes sense


def chunk_at(file: BinaryIO, start: int, end: int) -> Chunk:
    """Return a chunk as it stands in the file, packed."""
    file.seek(start + _RECORD.size)
    found: Chunk = Chunk.read(ReadDataStream(BytesIO(file.read(end - start - _RECORD.size))))
    return found


def write_metadata(file: BinaryIO, summary: Summary, name: str, said: dict[str, str]) -> None:
    """Write a metadata record; return its index entry."""
    out, offset = RecordBuilder(), file.tell()
    Metadata(name=name, metadata=said).write(out)
    _index_metadata(summary, offset, out.count, name)
    file.write(built(out))


def _index_metadata(summary: Summary, offset: int, length: int, name: str) -> None:
    summary.metadata.append(MetadataIndex(offset=offset, length=length, name=name))
    assert summary.statistics is not None
    summary.statistics.metadata_count += 1


def write_chunk(
    file: BinaryIO, summary: Summary, plain: bytes, counts: Mapping[int, int], begin_ns: int,
    end_ns: int,
) -> Chunk:  # fmt: skip
    """Write and return a chunk of whole records: ``counts`` messages by channel, ``begin_ns`` to
    ``end_ns`` on the wall clock."""
    level = SMALL_LEVEL if len(plain) < SMALL_BYTES else LEVEL
    packed = zstandard.ZstdCompressor(level).compress(plain)
    out, start = RecordBuilder(), file.tell()
    chunk = Chunk(
        compression="zstd",
        data=packed,
        message_start_time=begin_ns,
        message_end_time=end_ns,
        uncompressed_crc=zlib.crc32(plain),
        uncompressed_size=len(plain),
    )
    chunk.write(out)
    _index_chunk(summary, start, out.count, len(packed), len(plain), begin_ns, end_ns)
    _count(summary, counts, begin_ns, end_ns)
    file.write(built(out))
    return chunk


def _index_chunk(
    summary: Summary, start: int, length: int, packed: int, plain: int, begin_ns: int, end_ns: int
) -> None:  # fmt: skip
    entry = RecordBuilder()
    ChunkIndex(
        chunk_length=length, chunk_start_offset=start, compression="zstd", compressed_size=packed,
        message_end_time=end_ns, message_index_length=0, message_index_offsets={},
        message_start_time=begin_ns, uncompressed_size=plain,
    ).write(entry)  # fmt: skip
    summary.chunks += built(entry)


def _count(summary: Summary, counts: Mapping[int, int], begin_ns: int, end_ns: int) -> None:
    total = summary.statistics
    assert total is not None
    first = not total.message_count
    total.message_start_time = begin_ns if first else min(total.message_start_time, begin_ns)
    total.message_end_time = max(total.message_end_time, end_ns)
    total.chunk_count += 1
    total.channel_count = len(summary.channels)
    for channel, count in counts.items():
        total.message_count += count
        by_channel = total.channel_message_counts
        by_channel[channel] = by_channel.get(channel, 0) + count


def write_summary(file: BinaryIO, summary: Summary) -> None:
    """Write the end of the data, the summary and the footer."""
    out = RecordBuilder()
    DataEnd(0).write(out)  # 0: no CRC over all data; each chunk has its own
    file.write(built(out))
    groups: tuple[tuple[int, Sequence[Any]], ...] = (
        (Opcode.SCHEMA, summary.schemas), (Opcode.CHANNEL, summary.channels),
        (Opcode.STATISTICS, [summary.statistics]), (Opcode.METADATA_INDEX, summary.metadata),
    )  # fmt: skip
    start, offsets = file.tell(), []
    for opcode, records in groups:
        first = out.count
        for record in records:
            record.write(out)
        if records:
            offsets.append(SummaryOffset(opcode, start + first, out.count - first))
    if summary.chunks:
        offsets.append(SummaryOffset(Opcode.CHUNK_INDEX, start + out.count, len(summary.chunks)))
        out.write(summary.chunks)
    offsets_start = start + out.count
    for offset in offsets:
        offset.write(out)
    data = built(out)
    crc = zlib.crc32(_footer(start, offsets_start, 0)[:-4], zlib.crc32(data))
    file.write(data + _footer(start, offsets_start, crc) + MAGIC)


def _footer(start: int, offsets_start: int, crc: int) -> bytes:
    made = RecordBuilder()
    Footer(start, offsets_start, crc).write(made)
    return built(made)


def built(builder: RecordBuilder) -> bytes:
    """Return what was written to it, and empty it."""
    return bytes(builder.end())  # type: ignore[no-untyped-call]
