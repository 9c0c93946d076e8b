"""The end of a session file: its summary, read without reading the rest."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, BinaryIO, Final

from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.records import Channel, ChunkIndex, MetadataIndex, Schema, Statistics

MAGIC: Final = bytes((137, 77, 67, 65, 80, 48, 13, 10))
MAX_SUMMARY_BYTES: Final = 256 << 20
"""An index entry is about 100 bytes per chunk of 1 MiB: this is enough for 2 TiB."""
_FOOTER: Final = struct.Struct("<BQQQI")
_DATA_END: Final = struct.Struct("<BQI")
_READ: Final = {
    Opcode.SCHEMA: Schema, Opcode.CHANNEL: Channel, Opcode.STATISTICS: Statistics,
    Opcode.CHUNK_INDEX: ChunkIndex, Opcode.METADATA_INDEX: MetadataIndex,
}  # fmt: skip


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
    """The summary of an open file, which stays where it was read to; None where it has none, or
    none that makes sense."""
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
    for opcode, record in _records(file.read(size - tail - start)):
        _take(found, opcode, record)
    return found


def _take(found: Summary, opcode: int, record: Any) -> None:
    if isinstance(record, Statistics):
        found.statistics = record
    elif isinstance(record, Schema):
        found.schemas.append(record)
    elif isinstance(record, Channel):
        found.channels.append(record)
    elif isinstance(record, ChunkIndex):
        found.chunks.append(record)
    elif isinstance(record, MetadataIndex):
        found.metadata.append(record)
    elif opcode != Opcode.SUMMARY_OFFSET:
        found.known = False


def _records(data: bytes) -> Iterator[tuple[int, Any]]:
    stream = ReadDataStream(BytesIO(data))
    while stream.count < len(data):
        opcode, length = stream.read1(), stream.read8()
        if length > len(data) - stream.count:
            raise ValueError("record longer than its section")
        end, kind = stream.count + length, _READ.get(Opcode(opcode))
        yield opcode, kind.read(stream) if kind is not None else None  # type: ignore[attr-defined]
        if stream.count > end:
            raise ValueError("record longer than it says")
        stream.read(end - stream.count)
