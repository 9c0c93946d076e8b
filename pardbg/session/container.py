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
MAX_SUMMARY_BYTES: Final = 256 << 20
"""An index entry is about 100 bytes per chunk of 1 MiB: this is enough for 2 TiB."""
_FOOTER: Final = struct.Struct("<BQQQI")
_DATA_END: Final = struct.Struct("<BQI")
_LISTS: Final = {
    Opcode.SCHEMA: (Schema, "schemas"), Opcode.CHANNEL: (Channel, "channels"),
    Opcode.CHUNK_INDEX: (ChunkIndex, "chunks"), Opcode.METADATA_INDEX: (MetadataIndex, "metadata"),
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
    chunks: list[ChunkIndex] = field(default_factory=list)
    metadata: list[MetadataIndex] = field(default_factory=list)
    known: bool = True
    """False: it has records of a kind that this reader does not know."""


def read_summary(file: BinaryIO) -> Summary | None:
    """Return the summary of an open file, whose place stays; None: it has none that makes sense."""
    at = file.tell()
    try:
        return _read(file)
    # mcap's readers raise whatever struct, str and dict raise; sizes were checked before.
    except (McapError, OSError, ValueError, struct.error, KeyError, OverflowError, EOFError):
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
    for number, stream, _ in records_in(file.read(size - tail - start)):
        opcode = Opcode(number)  # raises ValueError
        if opcode == Opcode.STATISTICS:
            found.statistics = Statistics.read(stream)
        elif opcode in _LISTS:
            kind, name = _LISTS[opcode]
            getattr(found, name).append(kind.read(stream))  # type: ignore[attr-defined]
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
    return Summary(0, statistics=Statistics(
        attachment_count=0, channel_count=0, channel_message_counts={}, chunk_count=0,
        message_count=0, metadata_count=0, message_start_time=0, message_end_time=0,
        schema_count=0,
    ))  # fmt: skip


def write_metadata(file: BinaryIO, summary: Summary, name: str, said: dict[str, str]) -> None:
    """Write a metadata record; return its index entry."""
    out, offset = RecordBuilder(), file.tell()
    Metadata(name=name, metadata=said).write(out)
    summary.metadata.append(MetadataIndex(offset=offset, length=out.count, name=name))
    assert summary.statistics is not None
    summary.statistics.metadata_count += 1
    file.write(built(out))


def write_chunk(
    file: BinaryIO, summary: Summary, plain: bytes, counts: Mapping[int, int], begin_ns: int,
    end_ns: int,
) -> None:  # fmt: skip
    """Write a chunk of whole records: ``counts`` messages by channel, ``begin_ns`` to ``end_ns`` on
    the wall clock."""
    level = SMALL_LEVEL if len(plain) < SMALL_BYTES else LEVEL
    packed = zstandard.ZstdCompressor(level).compress(plain)
    out, start = RecordBuilder(), file.tell()
    Chunk(
        compression="zstd", data=packed, message_start_time=begin_ns, message_end_time=end_ns,
        uncompressed_crc=zlib.crc32(plain), uncompressed_size=len(plain),
    ).write(out)  # fmt: skip
    summary.chunks.append(ChunkIndex(
        chunk_length=out.count, chunk_start_offset=start, compression="zstd",
        compressed_size=len(packed), message_end_time=end_ns, message_index_length=0,
        message_index_offsets={}, message_start_time=begin_ns, uncompressed_size=len(plain),
    ))  # fmt: skip
    _count(summary, counts, begin_ns, end_ns)
    file.write(built(out))


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
        (Opcode.STATISTICS, [summary.statistics]), (Opcode.CHUNK_INDEX, summary.chunks),
        (Opcode.METADATA_INDEX, summary.metadata),
    )  # fmt: skip
    start, offsets = file.tell(), []
    for opcode, records in groups:
        first = out.count
        for record in records:
            record.write(out)
        if records:
            offsets.append(SummaryOffset(opcode, start + first, out.count - first))
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
