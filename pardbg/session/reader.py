"""Reads a session file into messages, as a Source. A hostile or cut-off file costs bounded memory.

docs/session-format.md says what is in the file.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgpack
import zstandard
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.records import Channel, Chunk, Footer, Header, Metadata
from mcap.records import Message as McapMessage
from mcap.stream_reader import StreamReader

from pardbg.errors import UserError
from pardbg.events.fields import MAX_NUMBER
from pardbg.session import pack
from pardbg.session.container import MAGIC, read_summary, records_in
from pardbg.store.source import Message
from pardbg.store.store import NOTE_TRUNCATED, Store
from pardbg.words import whole
from pardbg_agent import wire

T = TypeVar("T")
FORMAT: Final = 2
"""Newest file format this reader knows."""
PROFILE: Final = "pardbg"
RUN_METADATA: Final = "pardbg.run"
PACK_TOPIC: Final = "messages"
PACK_ENCODING: Final = "x-pardbg-pack"
PACK_KEY: Final = b"P"
"""In place of a key: the channel's messages are packs of many."""
MAX_CHUNK_BYTES: Final = 64 << 20
"""Chunks are about 1 MiB; a larger one than this is damage or malice."""
MAX_CHANNELS: Final = 1 << 16
MAX_CHANNEL_BYTES: Final = 1 << 12
FREE_BYTES: Final = 64 << 20
"""Payloads that a file of any size may have, together."""
MOST_PACKED: Final = 256
"""Bytes of payload for each byte of a file, at most: lines that are alike are packed that well."""
RECORDS_WEIGH: Final = 4
"""Records count so many times: they are packed 5 to 15 times, never more than 64."""
MESSAGE_BYTES: Final = 128
"""What a message takes beside its payload."""
DAMAGED: Final = (
    McapError, struct.error, ValueError, KeyError, OverflowError, zstandard.ZstdError,
)  # fmt: skip


class SessionError(UserError):
    """A file that cannot be opened as a session: one line, what and what to do."""


class _Bounded:
    """A file whose reads never take more than a whole chunk, whatever a length field says."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, length: int) -> bytes:
        return self._file.read(min(length, MAX_CHUNK_BYTES))


class Allowance:
    """What the messages of a file may take in memory: as much as one of its size honestly holds."""

    def __init__(self) -> None:
        self._left = FREE_BYTES

    def spend(self, packed_bytes: int, messages: list[Message]) -> list[Message]:
        """Return the messages that so many bytes of the file gave; ValueError: it is too much."""
        self._left += MOST_PACKED * packed_bytes
        for message in messages:
            weight = RECORDS_WEIGH if message.key[:1] == wire.Key.RECORDS.value else 1
            self._left -= weight * len(message.payload) + MESSAGE_BYTES
        if self._left < 0:
            raise ValueError("more than a file of this size holds")
        return messages


def records_of(file: BinaryIO) -> Iterator[Any]:
    """Return the MCAP records from the begin of a file on; chunks as they are, packed."""
    bounded: Any = _Bounded(file)
    return StreamReader(bounded, emit_chunks=True, record_size_limit=MAX_CHUNK_BYTES).records


class SessionSource:
    """A session file behind the Source seam: each poll gives the messages of the next chunk."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.end_ns: int | None = None
        """When the last message came, as the summary says it; None without one."""
        self._file = file
        self._summary = read_summary(file)
        self._finished = False
        self._keys: dict[int, bytes] = {}
        self._allowance = Allowance()
        self._records = records_of(file)
        self._waiting: list[Message] = self._begin()

    @property
    def live(self) -> bool:
        return False

    @property
    def finished(self) -> bool:
        return self._finished and not self._waiting

    def poll(self, timeout_ms: int) -> list[Message]:
        """Return messages of the next chunk; empty at the end. Never waits."""
        while not self._waiting and not self._finished:
            self._waiting = self._next()
        messages, self._waiting = self._waiting, []
        return messages

    def close(self) -> None:
        self._finished, self._waiting = True, []
        self._file.close()

    def _begin(self) -> list[Message]:
        """Read up to the run's metadata; refuse what is not a session of a known format."""
        messages: list[Message] = []
        try:
            header = next(self._records)
            if not isinstance(header, Header) or header.profile != PROFILE:
                raise SessionError(f"{self.path} is an MCAP file, but not a pardbg session")
            for record in self._records:
                if isinstance(record, Metadata) and record.name == RUN_METADATA:
                    return [self._run(record.metadata)]
                messages += self._take(record)
                if messages:
                    break
        except (StopIteration, *DAMAGED):
            return messages + self._end(truncated=True)
        return messages

    def _run(self, said: dict[str, str]) -> Message:
        """The run's facts as a definition, for a file that was cut off before the hub's own."""
        for name, known in (("format", FORMAT), ("wire", wire.PROTOCOL_VERSION)):
            if number_of(said.get(name)) > known:
                raise SessionError(
                    f"{self.path} was written by a newer pardbg ({name} {said[name][:20]}, this "
                    f"one reads {known}): update pardbg to open it"
                )
        facts: dict[str, Any] = {"k": wire.DefKind.RUN.value}
        facts.update({name: said.get(name, "") for name in ("run", "name", "host", "cwd")})
        facts["recipe"] = said.get("recipe") or None
        facts["t_ns"], facts["wall_ns"] = (
            number_of(said.get("t_ns")),
            number_of(said.get("wall_ns")),
        )
        facts["argv"] = words_of(said.get("argv", ""))
        counted = self._summary.statistics if self._summary is not None else None
        if counted is not None and counted.message_count:
            end_ns = counted.message_end_time - facts["wall_ns"] + facts["t_ns"]
            self.end_ns = end_ns if 0 < end_ns < MAX_NUMBER else None
        return Message(wire.Key.DEFINITION.value, msgpack.packb(facts), facts["t_ns"])

    def _next(self) -> list[Message]:
        try:
            record = next(self._records)
            if isinstance(record, Footer):
                return self._end(truncated=False)
            return self._take(record)
        except StopIteration:
            return self._end(truncated=False)
        except DAMAGED:  # cut off or damaged here: what came before is good
            return self._end(truncated=True)

    def _take(self, record: Any) -> list[Message]:
        chunk = isinstance(record, Chunk)
        messages = list(messages_of(unpack_chunk(record) if chunk else [record], self._keys))
        data = getattr(record, "data", b"")
        return self._allowance.spend(len(data), messages)

    def _end(self, truncated: bool) -> list[Message]:
        self._finished = True
        if not truncated:
            return []
        note = {"k": wire.DefKind.NOTE.value, "key": NOTE_TRUNCATED, "value": True}
        return [Message(wire.Key.DEFINITION.value, msgpack.packb(note), 0)]


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Say in one line why ``path`` cannot be read: SessionError."""
    try:
        yield
    except FileNotFoundError:
        raise SessionError(f"no such file: {path}") from None
    except IsADirectoryError:
        raise SessionError(f"{path} is a directory: give a session file (.mcap)") from None
    except OSError as error:
        why = "permission denied" if isinstance(error, PermissionError) else error.strerror
        raise SessionError(f"cannot read {path}: {why or error}") from None


def open_checked(path: Path, use: Callable[[BinaryIO], T]) -> T:
    """Open a file that begins as a session does; return what ``use`` makes of it, which closes it.
    Raises SessionError, one line for the user."""
    with _reading(path):
        file = open(path, "rb")  # noqa: SIM115 - open as long as what is made of it
        try:
            _check_magic(path, file)
            return use(file)
        except BaseException:
            file.close()
            raise


def open_session(path: str | Path) -> SessionSource:
    """Open a session file. Raises SessionError, one line for the user."""
    return open_checked(Path(path), partial(SessionSource, Path(path)))


def load(path: str | Path, *, growing: bool = False) -> Store:
    """Load a whole session file into a store. Raises SessionError.

    ``growing``: a run is still writing the file, so that it has no end is as it should be.
    """
    source = open_session(path)
    store = Store()
    with closing(source), _reading(source.path):
        while not source.finished:
            store.apply_all(source.poll(0))
    store.settle()
    if growing:
        store.truncated, store.live = False, True
    return store


def messages_of(records: list[Any], keys: dict[int, bytes]) -> Iterator[Message]:
    """Return the messages of a chunk's MCAP records, adding its channels to ``keys``."""
    packs = 0
    for record in records:
        if isinstance(record, Channel):
            if len(keys) < MAX_CHANNELS:
                keys[record.id] = key_of(record)
        elif isinstance(record, McapMessage):
            key = keys.get(record.channel_id, b"?")
            if key != PACK_KEY:
                yield Message(key, record.data, record.publish_time)
                continue
            packs += 1
            if packs > 1:
                raise ValueError("a chunk has one pack: its limit is the chunk's")
            yield from pack.unpack(record.data)


def _check_magic(path: Path, file: BinaryIO) -> None:
    head = file.read(len(MAGIC))
    if not head:
        raise SessionError(f"{path} is empty: nothing was recorded")
    if not MAGIC.startswith(head) and head != MAGIC:
        raise SessionError(
            f"{path} is not a session: record one with `pardbg run -o S.mcap -- CMD`"
        )
    if len(head) < len(MAGIC):
        raise SessionError(f"{path} is cut off after {len(head)} bytes: nothing of it is left")
    file.seek(0)


def unpack_chunk(chunk: Chunk) -> list[Any]:
    """Return a chunk's records; checks its size before unpacking, its CRC after."""
    if chunk.uncompressed_size > MAX_CHUNK_BYTES:
        raise ValueError("chunk too large")
    if chunk.compression == "zstd":
        if zstandard.frame_content_size(chunk.data) > MAX_CHUNK_BYTES:
            raise ValueError("chunk too large")
        plain = zstandard.ZstdDecompressor().decompress(
            chunk.data, max_output_size=chunk.uncompressed_size
        )
    elif chunk.compression == "":
        plain = chunk.data
    else:
        raise ValueError(f"compression {chunk.compression}")
    if chunk.uncompressed_crc and zlib.crc32(plain) != chunk.uncompressed_crc:
        raise ValueError("chunk CRC")
    found: list[Any] = []
    for opcode, stream, length in records_in(plain):
        if len(found) >= pack.MAX_MESSAGES:
            raise ValueError("a chunk of too many messages")
        if opcode == Opcode.CHANNEL and length <= MAX_CHANNEL_BYTES:
            found.append(Channel.read(stream))
        elif opcode == Opcode.MESSAGE:
            found.append(McapMessage.read(stream, length))
    return found


def key_of(channel: Channel) -> bytes:
    """Return the wire's first frame: from the channel's metadata, else from its topic."""
    said = channel.metadata.get("key", "") + channel.metadata.get("proc", "")
    if not said:
        topic, _, proc = channel.topic.partition("/")
        letters = {"records": "R", "defs": "D", "output": "O", "control": "C", "state": "S"}
        said = letters.get(topic, "?") + ("" if proc == "hub" else proc)
    return said.encode("ascii", "replace")


def number_of(text: str | None) -> int:
    """Return a whole number of the metadata, which is text; 0: it is none."""
    return whole(text) or 0


def words_of(text: str) -> list[str]:
    """Return a command line of the metadata, a JSON list; empty: it is none."""
    try:
        words = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return []
    return [str(word) for word in words] if isinstance(words, list) else []
