"""Repair of a damaged or truncated session: every readable chunk, wherever it is in the file, is
written with a new index and summary; and losses are reported.

A reader stops at the first damage. Here the next chunk is searched behind it: a chunk begins with
its opcode and length and names its compression, so it can be found, and its CRC decides.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import msgpack
from mcap.data_stream import ReadDataStream
from mcap.opcode import Opcode
from mcap.records import Channel, Chunk, Header, Metadata, Statistics
from mcap.writer import MCAP0_MAGIC

from pardbg.events import control_facts, fields
from pardbg.events.control_events import ControlEvent
from pardbg.events.decode import Malformed, decode_map
from pardbg.session import layout, reader
from pardbg.session.layout import END_METADATA, MAX_CHANNELS, PROFILE, RUN_METADATA
from pardbg.session.reader import SessionError
from pardbg.session.writer import RunFacts, SessionWriter
from pardbg.store.source import Message
from pardbg.store.store import NOTE_TRUNCATED
from pardbg.words import duration, size
from pardbg_agent.wire import DefKind, Key

_HEAD: Final = 9
"""Opcode and length."""
_CHUNK: Final = re.compile(rb"\x06.{5}\x00{3}.{24}.{4}(?:\x04\x00\x00\x00zstd|\x00{4})", re.DOTALL)
_CODE: Final = re.compile(r"-?[0-9]{1,9}", re.ASCII)
_MAX_NS: Final = 1 << 62
_NUMBERED: Final = (Key.OUTPUT.value, Key.CONTROL.value, Key.STATE.value)


@dataclass(slots=True)
class Repaired:
    """Summary of a repair: what was kept and what was lost."""

    num_messages: int = 0
    num_chunks: int = 0
    lost: list[tuple[int, int]] = field(default_factory=list)
    """[from, to) in the file: bytes that are not valid any more."""
    lost_ns: list[tuple[int, int]] = field(default_factory=list)
    """Time spans around each loss: last message before it, first one after."""
    unknown_channel: int = 0
    """Number of messages whose channel was defined in a lost chunk."""
    expected_messages: int | None = None
    """Number of messages by the file's own count; None if the count is lost, too."""
    ended: bool = False
    """Whether the file has its end."""

    @property
    def whole(self) -> bool:
        """Return whether no message was lost."""
        missing = (self.expected_messages or 0) > self.num_messages
        return self.ended and not (self.lost or self.unknown_channel or missing)

    def text(self) -> str:
        """Return the summary as one line for users."""
        kept = f"kept {self.num_messages:,} messages in {self.num_chunks:,} chunks"
        said = []
        if self.expected_messages is not None and self.expected_messages > self.num_messages:
            said.append(f"{self.expected_messages - self.num_messages:,} messages")
        if self.lost:
            times = ", ".join(duration(end - begin) for begin, end in self.lost_ns)
            places = f" ({times} of the run)" if times else ""
            said.append(f"{size(sum(end - at for at, end in self.lost))} of the file{places}")
        if self.unknown_channel:
            said.append(f"{self.unknown_channel:,} messages whose channel is not known any more")
        if not self.ended:
            said.append("everything after its last whole chunk")
        return f"{kept}; nothing was lost" if self.whole else f"{kept}; lost: {', '.join(said)}"


def repair(path: Path, output: Path) -> Repaired:
    """Write the readable content of ``path`` to ``output``. Raises SessionError, OSError."""
    file = reader.open_checked(path, lambda file: file)
    with file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Repair(path, data).write(output)


class _Repair:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data = path, data
        self.done = Repaired()
        self.decoder = reader.Decoder()
        self.metadata: dict[str, str] = {}
        self.end: dict[str, str] = {}
        """Metadata of the file about its end."""
        self.chunks: list[tuple[int, int]] = []
        self.unpackable = 2 * (reader.FREE_BYTES + reader.MOST_PACKED * len(data))
        """Bytes that the survey may still unpack: each chunk of an honest file, twice."""
        self.losses_before: set[int] = set()
        """Indices of chunks before which something was lost."""

    def write(self, output: Path) -> Repaired:
        self._survey()
        if not self.chunks:
            raise SessionError(f"{self.path}: no whole chunk is left, so nothing can be kept")
        facts = self._facts()
        writer = SessionWriter(output, facts)
        newest, number, ended = 0, 0, False
        for at, (begin, end) in enumerate(self.chunks):
            messages = self._messages(begin, end)
            if messages and at in self.losses_before and newest:
                self.done.lost_ns.append((newest, messages[0].received_ns))
            for message in messages:
                if message.key[:1] in _NUMBERED:
                    number = max(number, fields.integer(_map_of(message.payload), "n", 0))
                ended = ended or _is_run_end(message.key, message.payload)
                newest = max(newest, min(message.received_ns, _MAX_NS))
                writer.write(message.key, message.payload, newest)
                self.done.num_messages += 1
        if not self.done.whole:
            self._say(writer, newest, number + 1, ended)
        code = self.end.get("code", "")
        writer.close(
            int(code) if _CODE.fullmatch(code) else None,
            reader.number_of(self.end.get("hub_restarts")),
        )
        return self.done

    def _say(self, writer: SessionWriter, newest: int, number: int, ended: bool) -> None:
        fact = control_facts.Repaired(self.done.text())
        event = ControlEvent(fact, n=number, t_ns=newest)
        writer.write(Key.CONTROL.value, msgpack.packb(event.plain()), newest)
        if not ended and not self.done.ended:
            note = {"k": DefKind.NOTE.value, "key": NOTE_TRUNCATED, "value": True}
            writer.write(Key.DEFINITION.value, msgpack.packb(note), newest)

    # -- finding what is whole

    def _survey(self) -> None:
        """Scan the whole file once: chunks, channels, metadata, and invalid bytes."""
        at, size = len(MCAP0_MAGIC), len(self.data)
        while at < size - _HEAD:
            end = self._record(at)
            if end is None:
                found = self._next_chunk(at + 1)
                self.done.lost.append((at, size if found is None else found))
                self.losses_before.add(len(self.chunks))
                if found is None:
                    return
                at = found
            else:
                at = end

    def _record(self, at: int) -> int | None:
        """Take the record at ``at``; return its end, or None if it is not valid."""
        opcode = self.data[at]
        length = int.from_bytes(self.data[at + 1 : at + _HEAD], "little")
        end = at + _HEAD + length
        if not 1 <= opcode <= Opcode.DATA_END or length > reader.MAX_CHUNK_BYTES + 4096:
            return None
        if end > len(self.data):
            return None
        try:
            if opcode == Opcode.CHUNK:
                for record in reader.unpack_chunk(self._surveyed_chunk(at, end)):
                    if isinstance(record, Channel) and len(self.decoder.streams) < MAX_CHANNELS:
                        self.decoder.streams[record.id] = layout.stream_of(record)
                self.chunks.append((at, end))
                self.done.num_chunks += 1
            else:
                self._take_other(opcode, self.data[at + _HEAD : end])
        except reader.DAMAGED:
            return None
        if not self._begins_record(end):
            # Not a chunk, whose CRC would have said so: its length may be what is damaged.
            return end if opcode == Opcode.CHUNK else None
        return end

    def _begins_record(self, at: int) -> bool:
        rest = len(self.data) - at
        return rest < _HEAD or 1 <= self.data[at] <= Opcode.DATA_END or rest == len(MCAP0_MAGIC)

    def _surveyed_chunk(self, at: int, end: int) -> Chunk:
        chunk = self._chunk(at, end)
        self.unpackable -= chunk.uncompressed_size
        if self.unpackable < 0:
            raise ValueError("more than a file of this size holds")
        return chunk

    def _chunk(self, at: int, end: int) -> Chunk:
        body = self.data[at + _HEAD : end]
        chunk: Chunk = Chunk.read(ReadDataStream(BytesIO(body)))
        if not chunk.uncompressed_crc:
            raise ValueError("a chunk without a CRC cannot be trusted here")
        return chunk

    def _take_other(self, opcode: int, body: bytes) -> None:
        stream = ReadDataStream(BytesIO(body))
        if opcode == Opcode.HEADER:
            header: Header = Header.read(stream)
            if header.profile != PROFILE:
                raise SessionError(f"{self.path} is an MCAP file, but not a pardbg session")
        elif opcode == Opcode.METADATA:
            found: Metadata = Metadata.read(stream)
            if found.name == RUN_METADATA:
                self.metadata = dict(found.metadata)
            elif found.name == END_METADATA:
                self.end = dict(found.metadata)
                self._expect(reader.number_of(found.metadata.get("num_messages")))
        elif opcode == Opcode.CHANNEL:
            channel: Channel = Channel.read(stream)
            if len(self.decoder.streams) < MAX_CHANNELS:
                self.decoder.streams.setdefault(channel.id, layout.stream_of(channel))
        elif opcode == Opcode.STATISTICS:
            statistics: Statistics = Statistics.read(stream)
            self._expect(statistics.message_count)
        elif opcode == Opcode.FOOTER:
            self.done.ended = True

    def _expect(self, count: int) -> None:
        """Note the expected count of messages, which leaves out bookmarks put in later."""
        self.done.expected_messages = max(self.done.expected_messages or 0, count)

    def _next_chunk(self, start: int) -> int | None:
        for found in _CHUNK.finditer(self.data, start):
            at = found.start()
            length = int.from_bytes(self.data[at + 1 : at + _HEAD], "little")
            end = at + _HEAD + length
            if length > reader.MAX_CHUNK_BYTES + 4096 or end > len(self.data):
                continue
            try:
                reader.unpack_chunk(self._surveyed_chunk(at, end))
            except reader.DAMAGED:
                continue
            return at
        return None

    # -- what is in it

    def _messages(self, begin: int, end: int) -> list[Message]:
        """Return the messages of a chunk; none if its CRC is good but its content is invalid."""
        records = reader.unpack_chunk(self._chunk(begin, end))
        try:
            found = self.decoder.messages_of(records)
        except reader.DAMAGED:
            self.done.lost.append((begin, end))
            return []
        known = [m for m in found if m.key and m.key[:1] in b"RDOCS"]
        self.done.unknown_channel += len(found) - len(known)
        return known

    def _facts(self) -> RunFacts:
        said: dict[str, Any] = dict(self.metadata)
        if not said:
            lost = len(self.done.lost)
            said = next(self._run_definitions(), {"name": self.path.stem})
            del self.done.lost[lost:]  # counted again when the messages are written
            self.done.unknown_channel = 0
        argv = said.get("argv")
        words = reader.words_of(argv) if isinstance(argv, str) else list(fields.texts(said, "argv"))
        t_ns = min(_integer(said, "t_ns"), _MAX_NS)
        return RunFacts(
            fields.text(said, "run"), fields.text(said, "name"), fields.text(said, "host"),
            tuple(words), fields.text(said, "cwd"), fields.text(said, "recipe"),
            t_ns, max(t_ns, min(_integer(said, "wall_ns"), _MAX_NS)),
        )  # fmt: skip

    def _run_definitions(self) -> Iterator[dict[str, Any]]:
        for begin, end in self.chunks:
            for message in self._messages(begin, end):
                if message.key == Key.DEFINITION.value:
                    said = _map_of(message.payload)
                    if said.get("k") == DefKind.RUN.value:
                        yield said


def _integer(said: dict[str, Any], key: str) -> int:
    value = said.get(key)
    return reader.number_of(value) if isinstance(value, str) else fields.integer(said, key, 0)


def _map_of(payload: bytes) -> dict[str, Any]:
    try:
        return decode_map(payload)
    except Malformed:
        return {}


def _is_run_end(key: bytes, payload: bytes) -> bool:
    if key != Key.DEFINITION.value:
        return False
    said = _map_of(payload)
    return said.get("k") == DefKind.END.value and not said.get("proc")
