"""Writes a session: one MCAP file, every message as it came. docs/session-format.md has the layout.

A killed writer leaves a file that is good up to its last whole chunk; ``resume`` goes on with it.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from mcap.exceptions import McapError
from mcap.records import Channel, Chunk
from mcap.records import Message as McapMessage
from mcap.stream_reader import CRCValidationError, StreamReader, breakup_chunk
from mcap.writer import CompressionType, IndexType, Writer
from zstandard import ZstdError

from pardbg import __version__
from pardbg.store.source import Message
from pardbg_agent import wire
from pardbg_agent.wire import Key

FORMAT: Final = 1
PROFILE: Final = "pardbg"
RUN_METADATA: Final = "pardbg.run"
END_METADATA: Final = "pardbg.end"
CHUNK_BYTES: Final = 1 << 20
FLUSH_NS: Final = 500_000_000
"""A chunk is closed after this long, so a killed hub loses less than a second."""
RECORDS_ENCODING: Final = "x-pardbg-records"
TOPICS: Final = {
    b"R": ("records", "pardbg.records.v1"),
    b"D": ("defs", "pardbg.definition.v1"),
    b"O": ("output", "pardbg.output.v1"),
    b"C": ("control", "pardbg.control.v1"),
    b"S": ("state", "pardbg.state.v1"),
}
_DAMAGED: Final = (
    McapError, CRCValidationError, ZstdError, ValueError, KeyError, struct.error, OSError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the file says of the run as a whole."""

    run: str
    name: str
    host: str
    argv: tuple[str, ...]
    cwd: str
    recipe: str
    t_ns: int
    """An instant on CLOCK_MONOTONIC …"""
    wall_ns: int
    """… and the same on the wall clock, epoch ns."""

    def metadata(self) -> dict[str, str]:
        """The ``pardbg.run`` metadata record."""
        return {
            "format": str(FORMAT), "wire": str(wire.PROTOCOL_VERSION), "version": __version__,
            "run": self.run, "name": self.name, "host": self.host, "argv": json.dumps(self.argv),
            "cwd": self.cwd, "recipe": self.recipe, "t_ns": str(self.t_ns),
            "wall_ns": str(self.wall_ns),
        }  # fmt: skip


class SessionWriter:
    """Appends messages. Raises OSError where the file cannot be written."""

    def __init__(self, path: Path, facts: RunFacts) -> None:
        self.path = path
        self.num_messages = 0
        self._to_wall = facts.wall_ns - facts.t_ns
        self._channels: dict[bytes, int] = {}
        self._schemas: dict[bytes, int] = {}
        self._flushed_ns = 0
        self._dirty = False
        self._last_ns = 0
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 - open as long as the writer
        self._writer: Any = Writer(  # its methods carry no types
            self._file, chunk_size=CHUNK_BYTES, compression=CompressionType.ZSTD,
            index_types=IndexType.ALL, enable_crcs=True,
        )  # fmt: skip
        self._writer.start(profile=PROFILE, library=f"pardbg {__version__}")
        self._writer.add_metadata(RUN_METADATA, facts.metadata())
        self._file.flush()

    def write(self, key: bytes, payload: bytes, received_ns: int) -> None:
        """Record one message."""
        received_ns = self._last_ns = max(received_ns, self._last_ns)
        channel = self._channels.get(key) or self._channel(key)
        self._writer.add_message(
            channel, received_ns + self._to_wall, payload, received_ns,
            self.num_messages & 0xFFFFFFFF,
        )  # fmt: skip
        self.num_messages += 1
        if not self._dirty:
            self._dirty, self._flushed_ns = True, received_ns

    def tick(self, now: int) -> None:
        """Close the chunk in progress when it is old enough."""
        if self._dirty and now - self._flushed_ns >= FLUSH_NS:
            self.flush()

    def flush(self) -> None:
        """Close the chunk in progress; what was written so far survives a killed hub."""
        self._writer.flush()
        self._dirty = False

    def close(self, code: int | None = None, hub_restarts: int = 0) -> None:
        """End the file properly: metadata, index, summary."""
        facts = {
            "code": "" if code is None else str(code),
            "hub_restarts": str(hub_restarts),
            "num_messages": str(self.num_messages),
        }
        self._writer.flush()
        self._writer.add_metadata(END_METADATA, facts)
        self._writer.finish()
        self._file.close()

    def abandon(self) -> None:
        """Let go of a file that cannot be written any more."""
        try:
            self._file.close()
        except OSError:
            pass

    def _channel(self, key: bytes) -> int:
        kind, proc = key[:1], key[1:].decode("ascii")
        topic, _ = TOPICS[kind]
        if kind in (b"R", b"D"):
            topic = f"{topic}/{proc or 'hub'}"
        encoding = RECORDS_ENCODING if kind == Key.RECORDS.value else "msgpack"
        metadata = {"key": kind.decode(), "proc": proc}
        channel: int = self._writer.register_channel(topic, encoding, self._schema(kind), metadata)
        self._channels[key] = channel
        return channel

    def _schema(self, kind: bytes) -> int:
        known = self._schemas.get(kind, 0)
        if not known:
            name = TOPICS[kind][1]
            if kind == Key.RECORDS.value:
                layout = {"frame": wire.FRAME.format, "record": wire.RECORD_FIELDS}
                known = self._writer.register_schema(name, "x-pardbg", json.dumps(layout).encode())
            else:
                known = self._writer.register_schema(name, "", b"")
            self._schemas[kind] = known
        return known


def whole_messages(path: Path) -> Iterator[Message]:
    """Messages of a file that may be cut off anywhere, up to its last whole chunk."""
    keys: dict[int, bytes] = {}
    try:
        with open(path, "rb") as file:
            for record in StreamReader(file, emit_chunks=True, record_size_limit=1 << 30).records:
                if isinstance(record, Chunk):
                    yield from _messages(breakup_chunk(record, validate_crc=True), keys)
    except _DAMAGED:
        return


def _messages(records: list[Any], keys: dict[int, bytes]) -> Iterator[Message]:
    for record in records:
        if isinstance(record, Channel):
            meta = record.metadata
            keys[record.id] = (meta["key"] + meta["proc"]).encode("ascii")
        elif isinstance(record, McapMessage):
            yield Message(keys[record.channel_id], record.data, record.publish_time)


def resume(
    path: Path, facts: RunFacts, seen: Callable[[Message], None] = lambda message: None
) -> SessionWriter:
    """Go on with a session whose writer was killed: its whole chunks are written to a new file
    beside it, which then takes its place. ``seen`` gets each message that was kept."""
    fresh = path.with_name(path.name + ".resume")
    writer = SessionWriter(fresh, facts)
    for message in whole_messages(path):
        writer.write(message.key, message.payload, message.received_ns)
        seen(message)
    writer.flush()
    os.replace(fresh, path)
    writer.path = path
    return writer
