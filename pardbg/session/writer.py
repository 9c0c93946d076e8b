"""Writer of a session: one MCAP file, every message unchanged (layout: docs/session-format.md).

A killed writer leaves a file that is valid up to its last whole chunk; ``resume`` continues it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from mcap.data_stream import RecordBuilder
from mcap.records import Channel, Chunk, ChunkIndex
from mcap.records import Message as McapMessage
from mcap.summary import Summary

from pardbg.errors import NONSENSE
from pardbg.events.decode import decode_map
from pardbg.session import appending, layout, message_blocks, record_blocks
from pardbg.session.appending import Left, chunk_record, statistics_of
from pardbg.session.message_blocks import MAX_MESSAGES, Block, Numbered
from pardbg.session.reader import DAMAGED, Decoder, StoredChunk, unpack_chunk
from pardbg.session.record_blocks import is_batch
from pardbg.store.source import Message
from pardbg.version import __version__
from pardbg_agent import wire
from pardbg_agent.wire import DefKind, Key

CHUNK_BYTES: Final = 1 << 20
"""Bytes of a chunk's payloads, before packing."""
PROCESS_BYTES: Final = 1 << 16
"""Bytes of each process up to which a chunk may be larger: small blocks cost more."""
MAX_CHUNK_BYTES: Final = 8 << 20
FLUSH_NS: Final = 2_000_000_000
"""Maximum age of a chunk before it is closed. A killed hub's unwritten records are in the rings,
output is in its files: the next hub reads them again."""
CONTROL_FLUSH_NS: Final = 500_000_000
"""Maximum age of a chunk after a CONTROL message, which is stored nowhere else."""
REPLAY_BYTES: Final = 16 << 20
"""Unpacked size of the newest chunks that are read when a session is resumed: the history for late
viewers (some 30 to 60 MiB as it was sent)."""
IN_USE: Final = "another run is recorded to it"
_MAX_NS: Final = 1 << 62
_DEFINITION: Final = Key.DEFINITION.value
_RECORDS: Final = Key.RECORDS.value


def _opened(path: Path, new: bool) -> BinaryIO:
    """Open the file for one writer: two runs that start at once both find that it is not there.
    Raises OSError if another writes to it; a continued one may outlive the lock of a killed hub."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if new:
            file.close()
            raise OSError(errno.EBUSY, IN_USE) from None
    except OSError:
        pass  # a file system without locks
    if new:
        file.truncate()
    return file


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts of the whole run in the file."""

    run: str
    name: str
    host: str
    argv: tuple[str, ...]
    cwd: str
    recipe: str
    t_ns: int
    """A moment on CLOCK_MONOTONIC …"""
    wall_ns: int
    """… and the same moment on the wall clock, epoch ns."""

    def metadata(self) -> dict[str, str]:
        """Return the ``pardbg.run`` metadata."""
        return {
            "format": str(layout.FORMAT), "wire": str(wire.PROTOCOL_VERSION),
            "version": __version__, "run": self.run, "name": self.name, "host": self.host,
            "argv": json.dumps(self.argv), "cwd": self.cwd, "recipe": self.recipe,
            "t_ns": str(self.t_ns), "wall_ns": str(self.wall_ns),
        }  # fmt: skip

    def definition(self) -> dict[str, Any]:
        """Return the RUN definition."""
        return {"k": wire.DefKind.RUN.value, **asdict(self), "argv": list(self.argv)}


@dataclass(frozen=True, slots=True)
class Known:
    """State of a recording up to an offset, from which a killed writer's successor continues."""

    offset: int
    """Offset of the end of a whole chunk."""
    index: bytes
    """Channels and statistics up to that offset, as MCAP records."""

    def summary(self) -> Summary:
        """Return the index; an empty one if it is not valid."""
        try:
            found = appending.parsed(self.index)
        except DAMAGED:
            found = Summary()
        return found if found.statistics is not None else appending.empty_summary()


NOTHING_KNOWN: Final = Known(0, b"")


class SessionWriter:
    """Writer that appends messages. Raises OSError if the file cannot be written."""

    def __init__(self, path: Path, facts: RunFacts, left: Left | None = None) -> None:
        """Open or continue the file. ``left``: the existing contents of the file; ValueError if its
        channels' ids are not a writer's."""
        self.path = path
        self.num_messages = self.num_written = 0
        """Number of messages, and of those in whole chunks in the file."""
        self.written_ns = 0
        """Time of receipt of the newest message in a whole chunk."""
        self.on_chunk: Callable[[StoredChunk], None] = lambda chunk: None
        """Function called with each written chunk: the messages since the one before."""
        self._waiting: list[Message] = []
        self._waiting_bytes = 0
        self._limit_bytes = CHUNK_BYTES
        self._close_ns = 0
        """Time at which the chunk in progress is closed."""
        self._last_ns = 0
        self._channels: dict[bytes, int] = {}
        """Key -> channel; the empty key is for messages with their own keys."""
        self._prefixes: dict[bytes, str] = {}
        """Process -> prefix of its topics."""
        self._decoder = Decoder()
        self._to_wall_ns = facts.wall_ns - facts.t_ns
        self._before = left.summary if left is not None else None
        self._summary = self._before or appending.empty_summary()
        """Channels of the whole file; the rest describes the file before this writer."""
        self._counts = Counter[int]()
        """Number of this writer's messages, by channel."""
        self._file = _opened(path, new=left is None)
        if left is None:
            self._mcap = appending.make_writer(self._file)
            self._begin(facts.metadata())
        else:
            self._mcap = appending.continued(self._file, left.summary)
            self._go_on(left)

    def _begin(self, metadata: dict[str, str]) -> None:
        self._mcap.start(layout.PROFILE, f"pardbg {__version__}")
        self._mcap.add_metadata(layout.RUN_METADATA, metadata)
        for schema in layout.SCHEMAS:
            self._mcap.register_schema(schema.name, schema.encoding, schema.data)
        self._file.flush()

    def _go_on(self, left: Left) -> None:
        self._file.truncate(left.data_end)
        self._file.seek(left.data_end)
        for number, channel in left.summary.channels.items():
            stream = layout.stream_of(channel)
            self._channels[stream.key], self._decoder.streams[number] = number, stream
            if proc := stream.key[1:]:
                self._prefixes[proc] = channel.topic.rpartition("/")[0]

    def write(self, key: bytes, payload: bytes, received_ns: int) -> None:
        """Write a message into the chunk in progress."""
        received_ns = self._last_ns = max(min(received_ns, _MAX_NS), self._last_ns)
        if not self._waiting:
            self._close_ns = received_ns + FLUSH_NS
        if key == Key.CONTROL.value:
            self._close_ns = min(self._close_ns, received_ns + CONTROL_FLUSH_NS)
        self._waiting.append(Message(key, payload, received_ns))
        self._waiting_bytes += len(payload)
        self.num_messages += 1
        if self._waiting_bytes >= self._limit_bytes or len(self._waiting) >= MAX_MESSAGES:
            self.flush()

    def began_with(self, num_messages: int, newest_ns: int) -> None:
        """Note the file's earlier contents: number of messages, time of receipt of the newest."""
        self.num_messages = self.num_written = num_messages
        self._last_ns = self.written_ns = newest_ns

    @property
    def num_bytes(self) -> int:
        """Size of the file, without the chunk in progress (at most MAX_CHUNK_BYTES, packed)."""
        return self._file.tell()

    def known(self) -> Known:
        """Return the state of the file up to its newest whole chunk."""
        out = RecordBuilder()
        for channel in self._summary.channels.values():
            channel.write(out)
        statistics = statistics_of(appending.empty_summary())
        counts = Counter(statistics_of(self._summary).channel_message_counts) + self._counts
        replace(statistics, channel_message_counts=dict(counts)).write(out)
        return Known(self.num_bytes, appending.built(out))

    def tick(self, now: int) -> None:
        """Close the chunk in progress if it is old enough."""
        if self._waiting and now >= self._close_ns:
            self.flush()

    def flush(self) -> None:
        """Close the chunk in progress; written data survives a killed hub."""
        messages, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if messages:
            begin = self._file.tell()
            self._add(messages)
            self._mcap.flush()  # type: ignore[no-untyped-call]
            self.on_chunk(StoredChunk(self._written(begin), self._decoder))
            self.num_written += len(messages)
            self.written_ns = messages[-1].received_ns

    def _written(self, begin: int) -> Chunk:
        size = self._file.tell() - begin
        return chunk_record(os.pread(self._file.fileno(), size, begin))

    def close(self, code: int | None = None, hub_restarts: int = 0) -> None:
        """Write the end of the file: metadata, index, summary."""
        facts = {
            "code": "" if code is None else str(code),
            "hub_restarts": str(hub_restarts),
            "num_messages": str(self.num_messages),
        }
        self.flush()
        self._mcap.add_metadata(layout.END_METADATA, facts)
        appending.finish(self._mcap, self._file, self._before)
        self._file.close()

    def abandon(self) -> None:
        """Close a file that cannot be written any more."""
        try:
            self._file.close()
        except OSError:
            pass

    # -- a chunk

    def _add(self, messages: Sequence[Message]) -> None:
        by_key: dict[bytes, Numbered] = {}
        for number, message in enumerate(messages, self.num_messages - len(messages)):
            into = by_key.get(message.key)
            if into is None:
                into = by_key[message.key] = Numbered([], [])
            into.numbers.append(number)
            into.messages.append(message)
        odd = Numbered([], [])
        batches: list[Numbered] = []
        for key in sorted(by_key):
            part = by_key[key]
            if not key or not self._has_channel(key, part.messages):
                odd.extend(part)
            elif key[:1] != _RECORDS:
                self._add_block(message_blocks.encode(part))
            elif all(is_batch(message.payload) for message in part.messages):
                batches.append(part)
            else:
                odd.extend(part)
        if odd.numbers:
            self._has_channel(b"", ())
            wrapped = [layout.wrapped(message) for message in odd.messages]
            self._add_block(message_blocks.encode(Numbered(odd.numbers, wrapped)))
        for block in record_blocks.encode(batches):
            self._add_block(block)
        size = PROCESS_BYTES * len(self._prefixes)
        self._limit_bytes = min(max(CHUNK_BYTES, size), MAX_CHUNK_BYTES)

    def _add_block(self, block: Block) -> None:
        channel = self._channels[block.key]
        self._counts[channel] += 1
        self._mcap.add_message(
            channel, block.last_ns + self._to_wall_ns, block.data,
            block.first_ns + self._to_wall_ns, block.sequence & 0xFFFF_FFFF,
        )  # fmt: skip

    def _has_channel(self, key: bytes, messages: Sequence[Message]) -> bool:
        """Return whether a key has its own channel; registers one if there is room."""
        if key not in self._channels:
            channel = layout.channel_of(key, self._prefix(key, messages))
            if channel is None or (key and len(self._summary.channels) >= layout.MAX_CHANNELS):
                return False
            self._register(key, channel)
        return True

    def _prefix(self, key: bytes, messages: Sequence[Message]) -> str:
        """Return the prefix of the key's process's topics, by rank if the rank is known."""
        proc = key[1:]
        if proc not in self._prefixes:
            ranks = map(_rank_of, messages) if key[:1] == _DEFINITION else ()
            rank = next((rank for rank in ranks if rank is not None), None)
            self._prefixes[proc] = layout.prefix_of(proc, rank)
        return self._prefixes[proc]

    def _register(self, key: bytes, channel: Channel) -> None:
        number = self._mcap.register_channel(
            channel.topic, channel.message_encoding, channel.schema_id, channel.metadata
        )
        channel = replace(channel, id=number)
        self._channels[key], self._summary.channels[number] = number, channel
        self._decoder.streams[number] = layout.stream_of(channel)


def _rank_of(message: Message) -> int | None:
    try:
        fields = decode_map(message.payload)
    except NONSENSE:
        return None
    rank = fields.get("rank") if fields.get("k") == DefKind.PROCESS.value else None
    return rank if isinstance(rank, int) and rank >= 0 else None


Seen = Callable[[StoredChunk, int, list[Message]], None]
"""Function that gets a kept chunk, the chunk's offset, and its messages."""


def resume(
    path: Path, facts: RunFacts, seen: Seen = lambda *_: None, known: Known = NOTHING_KNOWN
) -> SessionWriter:
    """Continue a session whose writer was killed, behind the last whole chunk: the contents are
    kept and, except for their end, not read. ``seen`` gets the chunks after ``known``, and the last
    REPLAY_BYTES. A file without a valid begin is begun again. Raises OSError, and ValueError if
    channels are missing."""
    with open(path, "rb", buffering=0) as file:
        left = appending.survey(file)
        if left.metadata.get("format") != str(layout.FORMAT):
            return SessionWriter(path, facts)
        if left.metadata.get("run") != facts.run:
            raise OSError(errno.EBUSY, IN_USE)
        decoder, newest_ns = _read_on(file, left, known, seen)
    writer = SessionWriter(path, facts, left)
    writer.began_with(decoder.num_messages, newest_ns)
    return writer


def _read_on(file: BinaryIO, left: Left, known: Known, seen: Seen) -> tuple[Decoder, int]:
    """Read the file's newest chunks; add channels and numbers of messages to ``left``, which ends
    before the first damaged one. Return their decoder, and the last message's time of receipt."""
    if known.offset > left.data_end:
        known = NOTHING_KNOWN
    before, counts = known.summary(), Counter[int]()
    channels, decoder, newest_ns = before.channels, Decoder(), 0
    decoder.streams = layout.streams_of(channels)
    for index in _newest(left, known.offset):
        at = index.chunk_start_offset
        file.seek(at)
        try:
            chunk = chunk_record(file.read(index.chunk_length))
            records = unpack_chunk(chunk)
            messages = decoder.messages_of(records)
        except DAMAGED:
            left.cut(at)
            break
        if at >= known.offset:
            channels.update({r.id: r for r in records if isinstance(r, Channel)})
            counts.update(r.channel_id for r in records if isinstance(r, McapMessage))
        newest_ns = messages[-1].received_ns if messages else newest_ns
        seen(StoredChunk(chunk, decoder), at, messages)
    left.summary.schemas = {schema.id: schema for schema in layout.SCHEMAS}
    left.summary.channels = channels
    left.count(counts + Counter(statistics_of(before).channel_message_counts))
    return decoder, newest_ns


def _newest(left: Left, known: int) -> list[ChunkIndex]:
    chunks = left.summary.chunk_indexes
    plain, first = 0, len(chunks)
    while first and (chunks[first - 1].chunk_start_offset >= known or plain < REPLAY_BYTES):
        first -= 1
        plain += chunks[first].uncompressed_size
    return chunks[first:]
