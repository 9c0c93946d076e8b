"""Writes a session: one MCAP file, every message as it came. docs/session-format.md has the layout.

A killed writer leaves a file that is good up to its last whole chunk; ``resume`` goes on with it.

[Note: bookmarks put into a recorded session] A bookmark is a CONTROL message like those a live run
records, so a file is read in one way, by older versions too. It comes in one more small chunk, in
the place of the file's summary, which is written anew behind it: some kilobytes, however long the
recording is. What was recorded is never written over, so it is whole whatever happens in the
middle; a file that then ends without a summary reads as one that was cut off, and `pardbg repair`
makes a new one.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgpack
from mcap.data_stream import RecordBuilder
from mcap.records import Channel, Chunk
from mcap.records import Message as McapMessage

from pardbg import __version__
from pardbg.events import control_facts
from pardbg.events.control_events import ControlEvent
from pardbg.session import container, pack
from pardbg.session.container import Left, Summary, read_summary
from pardbg.session.reader import (
    DAMAGED,
    FORMAT,
    PACK_ENCODING,
    PACK_KEY,
    PACK_TOPIC,
    PROFILE,
    RUN_METADATA,
    SessionError,
    messages_of,
    records_of,
    unpack_chunk,
)
from pardbg.store.history import Bookmark
from pardbg.store.source import Message
from pardbg_agent import wire
from pardbg_agent.wire import Key

END_METADATA: Final = "pardbg.end"
CHUNK_BYTES: Final = 1 << 20
"""Payloads of a chunk, together, before they are packed."""
FLUSH_NS: Final = 2_000_000_000
"""A chunk is closed after this long. Records that a killed hub had in it are in the rings, output
is in its files: the next hub takes them again."""
CONTROL_FLUSH_NS: Final = 500_000_000
"""After a CONTROL message, which nobody else has."""
REPLAY_BYTES: Final = 16 << 20
"""Unpacked size of the newest chunks that are read when a session goes on: the history that late
viewers get (some 30 to 60 MiB as it was sent)."""
_MAX_NS: Final = 1 << 62
_CHANNEL: Final = Channel(
    id=1, topic=PACK_TOPIC, message_encoding=PACK_ENCODING, schema_id=0,
    metadata={"key": PACK_KEY.decode(), "proc": ""},
)  # fmt: skip
"""In every chunk, so that each can be read alone."""


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
        """Return the ``pardbg.run`` metadata."""
        return {
            "format": str(FORMAT), "wire": str(wire.PROTOCOL_VERSION), "version": __version__,
            "run": self.run, "name": self.name, "host": self.host, "argv": json.dumps(self.argv),
            "cwd": self.cwd, "recipe": self.recipe, "t_ns": str(self.t_ns),
            "wall_ns": str(self.wall_ns),
        }  # fmt: skip

    def definition(self) -> dict[str, Any]:
        """Return the RUN definition."""
        return {"k": wire.DefKind.RUN.value, **asdict(self), "argv": list(self.argv)}


class SessionWriter:
    """Appends messages. Raises OSError where the file cannot be written."""

    def __init__(self, path: Path, facts: RunFacts, left: Left | None = None) -> None:
        """``left``: what stands in the file, behind which to go on."""
        self.path = path
        self.num_messages = self.num_written = 0
        """In all, and of them in whole chunks in the file."""
        self.written_ns = 0
        """When the newest of those was received."""
        self.on_chunk: Callable[[Chunk], None] = lambda chunk: None
        """Called with each chunk that was written: what came since the one before."""
        self._to_wall = facts.wall_ns - facts.t_ns
        self._waiting: list[Message] = []
        self._waiting_bytes = 0
        self._close_ns = 0
        """When the chunk in progress is old enough."""
        self._last_ns = 0
        self._file: BinaryIO = open(path, "wb" if left is None else "ab")  # noqa: SIM115
        if left is None:
            self._summary = container.begin(self._file, PROFILE, f"pardbg {__version__}")
            self._summary.channels.append(_CHANNEL)
            container.write_metadata(self._file, self._summary, RUN_METADATA, facts.metadata())
            self._file.flush()
        else:
            self._summary = left.summary
            self._file.truncate(left.summary.data_end)
            self._file.seek(left.summary.data_end)

    def write(self, key: bytes, payload: bytes, received_ns: int) -> None:
        """Record one message."""
        received_ns = self._last_ns = max(min(received_ns, _MAX_NS), self._last_ns)
        if not self._waiting:
            self._close_ns = received_ns + FLUSH_NS
        if key == Key.CONTROL.value:
            self._close_ns = min(self._close_ns, received_ns + CONTROL_FLUSH_NS)
        self._waiting.append(Message(key, payload, received_ns))
        self._waiting_bytes += len(payload)
        self.num_messages += 1
        if self._waiting_bytes >= CHUNK_BYTES or len(self._waiting) >= pack.MAX_MESSAGES:
            self.flush()

    def began_with(self, num_messages: int, newest_ns: int) -> None:
        """Say what the file had before: number of messages, when the newest was received."""
        self.num_messages = self.num_written = num_messages
        self._last_ns = self.written_ns = newest_ns

    @property
    def num_bytes(self) -> int:
        """Size of the file so far, less the chunk in progress (at most CHUNK_BYTES, packed)."""
        return self._file.tell()

    def tick(self, now: int) -> None:
        """Close the chunk in progress when it is old enough."""
        if self._waiting and now >= self._close_ns:
            self.flush()

    def flush(self) -> None:
        """Close the chunk in progress; what was written so far survives a killed hub."""
        messages, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if messages:
            begin, end = messages[0].received_ns, messages[-1].received_ns
            out = RecordBuilder()
            _CHANNEL.write(out)
            McapMessage(
                channel_id=_CHANNEL.id, log_time=begin + self._to_wall,
                publish_time=begin, sequence=(self.num_messages - len(messages)) & 0xFFFFFFFF,
                data=pack.pack(messages),
            ).write(out)  # fmt: skip
            chunk = container.write_chunk(
                self._file, self._summary, container.built(out), {_CHANNEL.id: 1},
                begin + self._to_wall, end + self._to_wall,
            )  # fmt: skip
            self.on_chunk(chunk)
        self._file.flush()
        self.num_written += len(messages)
        self.written_ns = messages[-1].received_ns if messages else self.written_ns

    def close(self, code: int | None = None, hub_restarts: int = 0) -> None:
        """End the file properly: metadata, index, summary."""
        facts = {
            "code": "" if code is None else str(code),
            "hub_restarts": str(hub_restarts),
            "num_messages": str(self.num_messages),
        }
        self.flush()
        container.write_metadata(self._file, self._summary, END_METADATA, facts)
        container.write_summary(self._file, self._summary)
        self._file.close()

    def abandon(self) -> None:
        """Let go of a file that cannot be written any more."""
        try:
            self._file.close()
        except OSError:
            pass


def whole_messages(path: Path) -> Iterator[Message]:
    """Yield messages of a file that may be cut off anywhere, up to its last whole chunk."""
    keys: dict[int, bytes] = {}
    try:
        with open(path, "rb") as file:
            for record in records_of(file):
                if isinstance(record, Chunk):
                    yield from messages_of(unpack_chunk(record), keys)
    except (*DAMAGED, OSError):
        return


Seen = Callable[[Chunk, int, list[Message]], None]
"""Gets a chunk that was kept, its offset, and its messages."""


def resume(
    path: Path, facts: RunFacts, seen: Seen = lambda *_: None, known: int = 0
) -> SessionWriter:
    """Go on with a session whose writer was killed, behind its last whole chunk: what is in the
    file stays as it is and, but for its end, unread. ``seen`` gets the chunks from ``known`` on, an
    offset, and the last REPLAY_BYTES. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        left = container.survey(file, _CHANNEL)
        if left.metadata.get("format") != str(FORMAT):
            return _written_anew(path, facts, seen)
        num_messages, newest_ns = 0, 0
        for start, end, _ in _newest(left, known):
            try:
                chunk = container.chunk_at(file, start, end)
                records = unpack_chunk(chunk)
                messages = list(messages_of(records, {}))
            except DAMAGED:
                left = container.survey(file, _CHANNEL, start)
                break
            before = next((r.sequence for r in records if isinstance(r, McapMessage)), 0)
            num_messages = before + len(messages)
            newest_ns = messages[-1].received_ns if messages else newest_ns
            seen(chunk, start, messages)
    writer = SessionWriter(path, facts, left)
    writer.began_with(num_messages, newest_ns)
    return writer


def _newest(left: Left, known: int) -> list[tuple[int, int, int]]:
    """The chunks of the file's last REPLAY_BYTES, and those from ``known`` on."""
    plain, first = 0, len(left.chunks)
    while first and (left.chunks[first - 1][0] >= known or plain < REPLAY_BYTES):
        first -= 1
        plain += left.chunks[first][2]
    return left.chunks[first:]


def _written_anew(path: Path, facts: RunFacts, seen: Seen) -> SessionWriter:
    """Go on with a file that has no beginning, or is of an older format: what can be read of it is
    written to a new file beside it, which then takes its place."""
    fresh = path.with_name(path.name + ".resume")
    writer, waiting = SessionWriter(fresh, facts), list[Message]()

    def closed(chunk: Chunk) -> None:
        seen(chunk, 0, waiting.copy())
        waiting.clear()

    writer.on_chunk = closed
    for message in whole_messages(path):
        waiting.append(message)
        writer.write(message.key, message.payload, message.received_ns)
    writer.flush()
    os.replace(fresh, path)
    writer.path = path
    return writer


TOPIC: Final = "control"
_EMPTY: Final = {"key": Key.CONTROL.value.decode(), "proc": ""}


def add_bookmarks(path: Path, marks: Sequence[Bookmark], t_ns: int) -> None:
    """Write ``marks`` (an empty text takes the mark at its time away) into the file at ``path``.

    ``t_ns``: the session's newest time. Raises SessionError, one line for the user.
    """
    try:
        if not os.access(path, os.W_OK):
            raise SessionError(f"{path.name} is read-only: the bookmark is here until you leave")
        with open(path, "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # another viewer of the same file waits
            summary = read_summary(file)
            if summary is None or not summary.known or summary.statistics is None:
                raise SessionError(
                    f"{path.name} has no whole summary: `pardbg repair` it to keep bookmarks"
                )
            begin = summary.data_end
            _replace_end(file, begin, _end(summary, [_map(mark, t_ns) for mark in marks], t_ns))
    except OSError as error:
        raise SessionError(f"cannot keep the bookmark: {error.strerror or error}") from None


def _replace_end(file: BinaryIO, begin: int, end: bytes) -> None:
    """Write ``end`` from ``begin`` on, to the disk; on failure put back what was there."""
    number = file.fileno()
    size = os.fstat(number).st_size
    before = os.pread(number, size - begin, begin)
    try:
        if os.pwrite(number, end, begin) < len(end):
            raise OSError("no space left on the device")
        os.ftruncate(number, begin + len(end))
    except OSError:
        os.pwrite(number, before, begin)
        os.ftruncate(number, size)
        raise
    os.fsync(number)


def _map(mark: Bookmark, t_ns: int) -> dict[str, Any]:
    event = ControlEvent(control_facts.Bookmark(mark.t_ns, mark.text), t_ns=t_ns)
    return {**event.plain(), "wall_ns": time.time_ns()}


def _end(summary: Summary, maps: Sequence[dict[str, Any]], t_ns: int) -> bytes:
    """Return the chunk, the end of the data, and the summary with the chunk in it, as they stand
    from ``summary.data_end`` on."""
    statistics = summary.statistics
    assert statistics is not None
    channel, fresh = _channel(summary)
    log_ns = max(statistics.message_end_time, statistics.message_start_time)
    builder = RecordBuilder()
    if fresh:
        channel.write(builder)
    for number, fields in enumerate(maps):
        McapMessage(
            channel_id=channel.id, log_time=log_ns, publish_time=t_ns,
            sequence=(statistics.message_count + number) & 0xFFFFFFFF, data=msgpack.packb(fields),
        ).write(builder)  # fmt: skip
    made = _Placed(summary.data_end)
    container.write_chunk(
        made, summary, container.built(builder), {channel.id: len(maps)}, log_ns, log_ns
    )
    container.write_summary(made, summary)
    return made.getvalue()


class _Placed(BytesIO):
    """Bytes that will stand at an offset of a file, and tell offsets of that file."""

    def __init__(self, offset: int) -> None:
        super().__init__()
        self._offset = offset

    def tell(self) -> int:
        return self._offset + super().tell()


def _channel(summary: Summary) -> tuple[Channel, bool]:
    """The channel of CONTROL messages; made where the session had none."""
    for channel in summary.channels:
        if channel.topic == TOPIC:
            return channel, False
    number = max((channel.id for channel in summary.channels), default=0) + 1
    made = Channel(
        id=number, topic=TOPIC, message_encoding="msgpack", metadata=dict(_EMPTY), schema_id=0
    )
    summary.channels.append(made)
    return made, True
