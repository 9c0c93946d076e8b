"""Appending to an existing MCAP file, since mcap's own Writer only begins new ones. The data
section is continued by a Writer that knows the file's channels; the summary behind it is that
Writer's, joined with the summary of the file before.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import BinaryIO, Final

from mcap import records
from mcap.data_stream import ReadDataStream, RecordBuilder
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.summary import Summary
from mcap.writer import MCAP0_MAGIC, IndexType, Writer

MAX_METADATA_BYTES: Final = 1 << 20
MAX_SUMMARY_BYTES: Final = 64 << 20
"""An index entry is about 80 bytes per chunk of 1 MiB and more: enough for 0.8 TiB of records."""
HEAD: Final = struct.Struct("<BQ")
"""Opcode and length of any record."""
_FOOTER: Final = struct.Struct("<BQQQI")
DATA_END: Final = struct.Struct("<BQI")
_CHUNK: Final = struct.Struct("<BQQQQI8s")
"""Head of a chunk: opcode, length, first and last log time, unpacked size, CRC, compression with
its length."""
_ZSTD: Final = b"\x04\x00\x00\x00zstd"
_INDEXES: Final = IndexType.CHUNK | IndexType.METADATA
"""Index types written: none for messages, since a chunk must be unpacked to read them anyway."""
_NO_LIMIT: Final = 1 << 62
DAMAGED: Final = (
    McapError, struct.error, ValueError, KeyError, OverflowError,
)  # fmt: skip
"""Errors that mcap's readers raise for damaged files (of struct, str, dict; sizes are checked)."""


def make_writer(file: BinaryIO) -> Writer:
    """Return a Writer that ends chunks only on ``flush``."""
    return Writer(file, chunk_size=_NO_LIMIT, index_types=_INDEXES)


def records_in(data: bytes) -> Iterator[tuple[int, ReadDataStream, int]]:
    """Yield each record's opcode, the stream to read from, and its length. Raises ValueError."""
    stream = ReadDataStream(BytesIO(data))
    while stream.count < len(data):
        opcode, length = HEAD.unpack(stream.read(HEAD.size))
        end = stream.count + length
        if end > len(data):
            raise ValueError("record longer than its section")
        yield opcode, stream, length
        if stream.count > end:
            raise ValueError("record longer than it says")
        stream.read(end - stream.count)


# ---------------------------------------------------------------------- the end of a file


def summary_place(file: BinaryIO) -> tuple[int, int] | None:
    """Return the ends of the data and of the summary by the footer; None: no summary."""
    size = file.seek(0, os.SEEK_END)
    tail = _FOOTER.size + len(MCAP0_MAGIC)
    if size < tail + DATA_END.size:
        return None
    file.seek(size - tail)
    footer = file.read(tail)
    opcode, length, start, _, _ = _FOOTER.unpack_from(footer)
    if not footer.endswith(MCAP0_MAGIC) or opcode != Opcode.FOOTER or length != 20:
        return None
    if not DATA_END.size <= start <= size - tail <= start + MAX_SUMMARY_BYTES:
        return None
    file.seek(start - DATA_END.size)
    opcode, _, _ = DATA_END.unpack(file.read(DATA_END.size))
    return (start - DATA_END.size, size - tail) if opcode == Opcode.DATA_END else None


def read_statistics(file: BinaryIO) -> records.Statistics | None:
    """Return the statistics of an open file, whose position stays; None: there are none."""
    at = file.tell()
    try:
        for opcode, stream, _ in records_in(_summary_bytes(file)):
            if opcode == Opcode.STATISTICS:
                found: records.Statistics = records.Statistics.read(stream)
                return found
    except DAMAGED:
        pass
    finally:
        file.seek(at)
    return None


def read_summary(file: BinaryIO) -> Summary | None:
    """Return the whole summary of an open file; None: no summary, or an invalid one."""
    try:
        return parsed(_summary_bytes(file))
    except DAMAGED:
        return None


def _summary_bytes(file: BinaryIO) -> bytes:
    place = summary_place(file)
    if place is None:
        raise ValueError("no summary")
    begin = place[0] + DATA_END.size
    file.seek(begin)
    return file.read(place[1] - begin)


def parsed(data: bytes) -> Summary:
    """Return the summary made of these records. Raises the errors in DAMAGED."""
    found = Summary()
    for opcode, stream, _ in records_in(data):
        if opcode == Opcode.STATISTICS:
            found.statistics = records.Statistics.read(stream)
        elif opcode == Opcode.SCHEMA:
            schema: records.Schema = records.Schema.read(stream)
            found.schemas[schema.id] = schema
        elif opcode == Opcode.CHANNEL:
            channel: records.Channel = records.Channel.read(stream)
            found.channels[channel.id] = channel
        elif opcode == Opcode.CHUNK_INDEX:
            found.chunk_indexes.append(records.ChunkIndex.read(stream))
        elif opcode == Opcode.METADATA_INDEX:
            found.metadata_indexes.append(records.MetadataIndex.read(stream))
        elif opcode not in (Opcode.SUMMARY_OFFSET, Opcode.DATA_END, Opcode.FOOTER):
            raise ValueError("a record of an unknown kind in the summary")
    return found


# ---------------------------------------------------------------------- going on


def continued(file: BinaryIO, before: Summary) -> Writer:
    """Return a Writer that continues at ``file``'s position, with the file's channels. Raises
    ValueError if a Writer could not have given their ids."""
    writer = make_writer(file)
    for schema in before.schemas.values():
        if writer.register_schema(schema.name, schema.encoding, schema.data) != schema.id:
            raise ValueError("schema ids with gaps")
    for each in before.channels.values():
        number = writer.register_channel(
            each.topic, each.message_encoding, each.schema_id, each.metadata
        )
        if number != each.id:
            raise ValueError("channel ids with gaps")
    return writer


def finish(writer: Writer, file: BinaryIO, before: Summary | None) -> None:
    """Write the end of the file. ``before``: summary of the file's contents before this writer."""
    writer.flush()  # type: ignore[no-untyped-call]
    at = file.tell()
    writer.finish()  # type: ignore[no-untyped-call]
    if before is not None:
        file.seek(at)
        after = parsed(file.read()[: -len(MCAP0_MAGIC)])
        file.seek(at)
        file.truncate()
        _write_end(file, _joined(before, after))


def _joined(before: Summary, after: Summary) -> Summary:
    """Return the summary of a file of two parts, the second of which knows all channels."""
    after.chunk_indexes = before.chunk_indexes + after.chunk_indexes
    after.metadata_indexes = before.metadata_indexes + after.metadata_indexes
    first, second = statistics_of(before), statistics_of(after)
    if first.message_count:
        second.message_end_time = max(first.message_end_time, second.message_end_time)
        second.message_start_time = (
            min(first.message_start_time, second.message_start_time)
            if second.message_count
            else first.message_start_time
        )
    for channel, count in first.channel_message_counts.items():
        total = second.channel_message_counts.get(channel, 0) + count
        second.channel_message_counts[channel] = total
    second.message_count += first.message_count
    second.chunk_count, second.metadata_count = (
        len(after.chunk_indexes), len(after.metadata_indexes)
    )  # fmt: skip
    return after


def _write_end(file: BinaryIO, summary: Summary) -> None:
    out = RecordBuilder()
    records.DataEnd(0).write(out)  # 0: no CRC over all data; each chunk has its own
    at, start = file.tell(), out.count
    offsets: list[records.SummaryOffset] = []
    groups: tuple[tuple[int, list[records.McapRecord]], ...] = (
        (Opcode.SCHEMA, [*summary.schemas.values()]),
        (Opcode.CHANNEL, [*summary.channels.values()]),
        (Opcode.STATISTICS, [summary.statistics] if summary.statistics else []),
        (Opcode.CHUNK_INDEX, [*summary.chunk_indexes]),
        (Opcode.METADATA_INDEX, [*summary.metadata_indexes]),
    )
    for opcode, group in groups:
        first = out.count
        for record in group:
            record.write(out)
        offsets.append(records.SummaryOffset(opcode, at + first, out.count - first))
    offsets_at = out.count
    for offset in offsets:
        offset.write(out)
    records.Footer(at + start, at + offsets_at, 0).write(out)  # 0: no CRC
    file.write(built(out) + MCAP0_MAGIC)


# ---------------------------------------------------------------------- after a kill


@dataclass(slots=True)
class Left:
    """Contents of a killed writer's file, as read from the heads of its records."""

    summary: Summary
    """Index of the file's whole chunks, without channels and numbers of messages."""
    data_end: int = len(MCAP0_MAGIC)
    """End of the last whole chunk in the file, bytes."""
    metadata: dict[str, str] = field(default_factory=dict)
    """First metadata of the file: the run's."""

    def cut(self, at: int) -> None:
        """Drop the chunks from offset ``at`` on."""
        self.data_end = at
        chunks = self.summary.chunk_indexes
        self.summary.chunk_indexes = [each for each in chunks if each.chunk_start_offset < at]

    def count(self, messages: Mapping[int, int]) -> None:
        """Note the number of messages on each channel."""
        chunks, total = self.summary.chunk_indexes, statistics_of(self.summary)
        total.channel_message_counts = dict(messages)
        total.message_count = sum(messages.values())
        total.message_start_time = min((each.message_start_time for each in chunks), default=0)
        total.message_end_time = max((each.message_end_time for each in chunks), default=0)


def survey(file: BinaryIO) -> Left:
    """Return the contents of a file. Reads 64 bytes per chunk: ``file`` is best unbuffered."""
    size = os.fstat(file.fileno()).st_size
    left = Left(empty_summary())
    while (end := _look(file, left, size)) is not None:
        left.data_end = end
    return left


def empty_summary() -> Summary:
    """Return the summary of no messages."""
    made = Summary()
    made.statistics = records.Statistics(
        attachment_count=0, channel_count=0, channel_message_counts={}, chunk_count=0,
        message_count=0, message_end_time=0, message_start_time=0, metadata_count=0,
        schema_count=0,
    )  # fmt: skip
    return made


def _look(file: BinaryIO, left: Left, size: int) -> int | None:
    """Note the record at the end of ``left``, and return the record's end; None: no more."""
    at = left.data_end
    file.seek(at)
    head = file.read(64)
    if len(head) < _CHUNK.size:
        return None
    opcode, length = HEAD.unpack_from(head)
    end: int = at + HEAD.size + length
    if end > size:
        return None
    if opcode == Opcode.CHUNK and head.startswith(_ZSTD, _CHUNK.size - len(_ZSTD)):
        left.summary.chunk_indexes.append(_chunk_index(at, end, head))
        return end
    if opcode == Opcode.HEADER and at == len(MCAP0_MAGIC):
        return end
    if opcode == Opcode.METADATA and not left.metadata and length <= MAX_METADATA_BYTES:
        file.seek(at + HEAD.size)
        try:
            found: records.Metadata = records.Metadata.read(
                ReadDataStream(BytesIO(file.read(length)))
            )
        except DAMAGED:
            return None
        left.metadata = found.metadata
        left.summary.metadata_indexes.append(records.MetadataIndex(at, end - at, found.name))
        return end
    return None  # the run's end, an index, or nothing that makes sense


def _chunk_index(at: int, end: int, head: bytes) -> records.ChunkIndex:
    _, length, begin_ns, end_ns, plain, _, _ = _CHUNK.unpack_from(head)
    return records.ChunkIndex(
        chunk_length=end - at, chunk_start_offset=at, compression="zstd",
        compressed_size=length - (_CHUNK.size - HEAD.size) - 8, message_end_time=end_ns,
        message_index_length=0, message_index_offsets={}, message_start_time=begin_ns,
        uncompressed_size=plain,
    )  # fmt: skip


def statistics_of(summary: Summary) -> records.Statistics:
    """Return the statistics of a summary that has them."""
    assert summary.statistics is not None
    return summary.statistics


def chunk_record(data: bytes) -> records.Chunk:
    """Return the chunk of a whole record's bytes."""
    found: records.Chunk = records.Chunk.read(ReadDataStream(BytesIO(data[HEAD.size :])))
    return found


def built(builder: RecordBuilder) -> bytes:
    """Return the bytes written to a builder, and empty the builder."""
    return bytes(builder.end())  # type: ignore[no-untyped-call]
