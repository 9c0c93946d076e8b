"""Reads a session file into messages, as a Source. A hostile or cut-off file costs bounded memory.

docs/session-format.md describes the file.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final, TypeVar, cast

import msgpack
import zstandard
from mcap.data_stream import ReadDataStream
from mcap.opcode import Opcode
from mcap.records import Channel, Chunk, DataEnd, Footer, Header, McapRecord, Metadata
from mcap.records import Message as McapMessage
from mcap.stream_reader import StreamReader, get_chunk_data_stream
from mcap.writer import MCAP0_MAGIC

from pardbg.errors import UserError
from pardbg.events.fields import MAX_NUMBER
from pardbg.session import appending, layout, message_blocks, record_blocks
from pardbg.session.appending import HEAD, read_statistics
from pardbg.session.message_blocks import MAX_MESSAGES, Numbered
from pardbg.store.source import Message
from pardbg.store.store import NOTE_TRUNCATED, Store
from pardbg.words import whole
from pardbg_agent import wire

T = TypeVar("T")
MAX_CHUNK_BYTES: Final = 64 << 20
"""Maximum bytes of a chunk: chunks are a few MiB; a larger one is damage or malice."""
MAX_CHANNEL_BYTES: Final = 1 << 12
MAX_OTHERS: Final = 1 << 12
"""Maximum number of other records in a chunk than channels and messages; pardbg writes none."""
FREE_BYTES: Final = 64 << 20
"""Bytes of payload that a file of any size may contain."""
MOST_PACKED: Final = 256
"""Maximum bytes of payload per byte of a file: repeated lines are packed that well."""
RECORDS_WEIGH: Final = 4
"""Weight of records' bytes: a job's records are packed 5 to 15 times, never more than 64."""
ALIKE_BYTES, ALL_ALIKE_BYTES = 64 << 10, 384 << 20
"""Bytes of records that each process may have in addition, and all processes together: records of
thousands of simulated ranks that do the same are packed 280 times."""
MESSAGE_BYTES: Final = 128
"""Memory that a message takes beside its payload, bytes."""
BUNDLED: Final = "session.mcap"
"""Name of the session in a bundle, a tar in zstd."""
ZSTD: Final = b"\x28\xb5\x2f\xfd"
UNPACKED: Final = 16
"""Maximum bytes of a session, itself packed, per byte of a bundle."""
_MESSAGE: Final = struct.Struct("<HIQQ")
"""Channel, sequence, log time, publish time; then the data (the MCAP format, op=0x05)."""
DAMAGED: Final = (*appending.DAMAGED, zstandard.ZstdError)


class SessionError(UserError):
    """A file cannot be opened as a session: one line, with the reason and advice."""


class _Bounded:
    """File whose reads never take more than a whole chunk, whatever a length field states."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, length: int) -> bytes:
        return self._file.read(min(length, MAX_CHUNK_BYTES))


class Allowance:
    """Memory that a file's messages may take: as much as an honest file of that size contains."""

    def __init__(self) -> None:
        self._left, self._alike_left = FREE_BYTES, ALL_ALIKE_BYTES
        self._alike: dict[bytes, int] = {}
        """Key -> bytes of its records that were counted as additional ones."""

    def spend(self, packed_bytes: int, messages: list[Message]) -> list[Message]:
        """Return the messages from so many bytes of the file; ValueError: they are too large."""
        self._left += MOST_PACKED * packed_bytes
        for message in messages:
            size = len(message.payload)
            if message.key[:1] == wire.Key.RECORDS.value:
                size = RECORDS_WEIGH * (size - self._free(message.key, size))
            self._left -= size + MESSAGE_BYTES
        if self._left < 0:
            raise ValueError("more than a file of this size holds")
        return messages

    def _free(self, key: bytes, size: int) -> int:
        before = self._alike.get(key, 0)
        free = min(size, ALIKE_BYTES - before, self._alike_left)
        if free:
            self._alike[key] = before + free
            self._alike_left -= free
        return free


def records_of(file: BinaryIO) -> Iterator[McapRecord]:
    """Return the MCAP records from the begin of a file; chunks are returned packed."""
    bounded = cast(BinaryIO, _Bounded(file))
    return StreamReader(bounded, emit_chunks=True, record_size_limit=MAX_CHUNK_BYTES).records


@dataclass(slots=True)
class Decoder:
    """Decoder of one file's chunks into messages; knows the file's channels."""

    streams: layout.Streams = field(default_factory=dict)
    """Channels of the chunks so far."""
    num_messages: int = 0
    """Number of messages of the file, up to the newest decoded chunk."""

    def messages(self, chunk: Chunk) -> list[Message]:
        """Return the messages of a chunk, in the order in which they were received."""
        return self.messages_of(unpack_chunk(chunk))

    def messages_of(self, records: Sequence[McapRecord]) -> list[Message]:
        """Return the messages of a chunk's records. Raises ValueError."""
        found = Numbered([], [])
        blocks: list[tuple[bytes, bytes]] = []
        for record in records:
            if isinstance(record, Channel):
                if len(self.streams) < layout.MAX_CHANNELS:
                    self.streams[record.id] = layout.stream_of(record)
            elif isinstance(record, McapMessage):
                stream = self.streams.get(record.channel_id, _UNKNOWN)
                if stream.encoding == layout.RECORDS:
                    blocks.append((stream.key, record.data))
                else:
                    found.extend(message_blocks.decode(stream.key, record.data))
            if len(found.numbers) > MAX_MESSAGES:
                raise ValueError("a chunk of too many messages")
        found.extend(record_blocks.decode(blocks))
        self.num_messages = max(found.numbers, default=self.num_messages - 1) + 1
        return [layout.unwrapped(message) for message in found.in_order()]


_UNKNOWN: Final = layout.Stream(b"?", layout.MAPS)


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk as stored in the file, with its decoder."""

    chunk: Chunk
    decoder: Decoder

    def messages(self) -> list[Message]:
        """Return the messages of the chunk."""
        return self.decoder.messages(self.chunk)


class SessionSource:
    """Source of a session file's messages: each poll returns the messages of the next chunk.

    ``growing``: a run still writes the file; its last record is read once it is complete.
    """

    def __init__(self, path: Path, file: BinaryIO, growing: bool = False) -> None:
        self.path = path
        self._growing = growing
        self.end_ns: int | None = None
        """Time of the last message by the statistics; None without statistics."""
        self._file = file
        self._finished = False
        self._decoder = Decoder()
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
        """Return the messages of the next chunk; empty at the end. Never waits."""
        while not self._waiting and not self._finished and self._has_next():
            self._waiting = self._next()
        messages, self._waiting = self._waiting, []
        return messages

    def close(self) -> None:
        self._finished, self._waiting = True, []
        self._file.close()

    def _begin(self) -> list[Message]:
        """Read up to the run's metadata; refuse a file that is not a session of this format."""
        try:
            header = next(self._records)
            if not isinstance(header, Header) or header.profile != layout.PROFILE:
                raise SessionError(f"{self.path} is an MCAP file, but not a pardbg session")
            for record in self._records:
                if isinstance(record, Metadata) and record.name == layout.RUN_METADATA:
                    return [self._run(record.metadata)]
                if isinstance(record, Chunk):
                    break
        except (StopIteration, *DAMAGED):
            pass
        if self._growing:
            raise SessionError(f"{self.path} does not say yet which run it is of")
        return self._end(truncated=True)

    def _has_next(self) -> bool:
        """Return whether the next record is complete; always true if the file does not grow."""
        if not self._growing:
            return True
        at = self._file.tell()
        head = self._file.read(HEAD.size)
        self._file.seek(at)
        if len(head) < HEAD.size:
            return False
        return at + HEAD.size + int(HEAD.unpack(head)[1]) <= os.fstat(self._file.fileno()).st_size

    def _run(self, metadata: dict[str, str]) -> Message:
        """Return the run's facts as a definition, for a file that ends before the hub's own."""
        check_versions(self.path, metadata)
        counted = read_statistics(self._file)
        if counted is not None and counted.message_count:
            to_wall_ns = number_of(metadata.get("wall_ns")) - number_of(metadata.get("t_ns"))
            end_ns = counted.message_end_time - to_wall_ns
            self.end_ns = end_ns if 0 < end_ns < MAX_NUMBER else None
        t_ns = number_of(metadata.get("t_ns"))
        facts = {
            "k": wire.DefKind.RUN.value,
            **{name: metadata.get(name, "") for name in ("run", "name", "host", "cwd")},
            "recipe": metadata.get("recipe") or None, "t_ns": t_ns,
            "wall_ns": number_of(metadata.get("wall_ns")),
            "argv": words_of(metadata.get("argv", "")),
        }  # fmt: skip
        return Message(wire.Key.DEFINITION.value, msgpack.packb(facts), t_ns)

    def _next(self) -> list[Message]:
        try:
            record = next(self._records)
            if isinstance(record, Footer) or (isinstance(record, DataEnd) and self._at_summary()):
                return self._end(truncated=False)
            if not isinstance(record, Chunk):
                return []
            return self._allowance.spend(len(record.data), self._decoder.messages(record))
        except StopIteration:
            return self._end(truncated=False)
        except DAMAGED:  # cut off or damaged here: earlier data is good
            return self._end(truncated=True)

    def _at_summary(self) -> bool:
        """Return whether only the summary of the whole file follows, which has no new facts."""
        at = self._file.tell()
        place = appending.summary_place(self._file)
        self._file.seek(at)
        return place is not None and place[0] + appending.DATA_END.size == at

    def _end(self, truncated: bool) -> list[Message]:
        self._finished = True
        if not truncated:
            return []
        note = {"k": wire.DefKind.NOTE.value, "key": NOTE_TRUNCATED, "value": True}
        return [Message(wire.Key.DEFINITION.value, msgpack.packb(note), 0)]


def check_versions(path: Path, metadata: dict[str, str]) -> None:
    """Raise SessionError for a file of another format."""
    for name, known in (("format", layout.FORMAT), ("wire", wire.PROTOCOL_VERSION)):
        number = number_of(metadata.get(name))
        if number > known:
            raise SessionError(
                f"{path} was written by a newer pardbg ({name} {number}, this one reads {known}): "
                "update pardbg to open it"
            )
    if number_of(metadata.get("format")) != layout.FORMAT:
        raise SessionError(f"{path} is of a format from before the first release: record it anew")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise SessionError with the reason, in one line, why ``path`` cannot be read."""
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
    """Open a file that begins like a session; return the result of ``use``, which closes the file.
    Raises SessionError, one line for the user."""
    with _reading(path):
        file: BinaryIO = open(path, "rb")  # noqa: SIM115 - open as long as what is made of it
        try:
            if file.read(4) == ZSTD:
                file = _session_in(path, file)
            file.seek(0)
            _check_magic(path, file)
            return use(file)
        except BaseException:
            file.close()
            raise


def _session_in(path: Path, bundle: BinaryIO) -> BinaryIO:
    """Return a bundle's session, unpacked into a file without a name. It is the archive's first
    member; the rest is not read, and no more unpacked than the bundle's size allows."""
    left = FREE_BYTES + UNPACKED * bundle.seek(0, os.SEEK_END)
    bundle.seek(0)
    session = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as what is made of it
    try:
        with bundle, zstandard.ZstdDecompressor().stream_reader(bundle) as packed:
            head = packed.read(512)
            name, size = head[:100].rstrip(b"\0"), int(head[124:135], 8)
            if name != BUNDLED.encode() or not 0 <= size <= left:
                raise ValueError
            while size and (data := packed.read(min(size, 1 << 20))):
                session.write(data)
                size -= len(data)
    except (ValueError, zstandard.ZstdError):
        session.close()
        raise SessionError(f"{path} is not a bundle of pardbg, or damaged") from None
    return session


def open_session(path: str | Path) -> SessionSource:
    """Open a session file. Raises SessionError, one line for the user."""
    return open_checked(Path(path), partial(SessionSource, Path(path)))


def load(path: str | Path, *, growing: bool = False) -> Store:
    """Load a whole session file into a store. Raises SessionError.

    ``growing``: a run is still writing the file, so a missing end is no error.
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


def _check_magic(path: Path, file: BinaryIO) -> None:
    head = file.read(len(MCAP0_MAGIC))
    if not head:
        raise SessionError(f"{path} is empty: nothing was recorded")
    if head.startswith(b"\x1f\x8b"):
        raise SessionError(f"{path} is packed: `gunzip -k {path}` unpacks it")
    if not MCAP0_MAGIC.startswith(head) and head != MCAP0_MAGIC:
        raise SessionError(
            f"{path} is not a session: record one with `pardbg run -o S.mcap -- CMD`"
        )
    if len(head) < len(MCAP0_MAGIC):
        raise SessionError(f"{path} is cut off after {len(head)} bytes: nothing of it is left")
    file.seek(0)


def unpack_chunk(chunk: Chunk) -> list[McapRecord]:
    """Return a chunk's channels and messages; check the size before unpacking, the CRC after."""
    size = chunk.uncompressed_size
    if size > MAX_CHUNK_BYTES or chunk.compression not in ("zstd", ""):
        raise ValueError("chunk too large, or compressed in another way")
    if chunk.compression == "zstd" and zstandard.frame_content_size(chunk.data) > MAX_CHUNK_BYTES:
        raise ValueError("chunk too large")
    stream, end = get_chunk_data_stream(chunk, validate_crc=True)
    body: bytes = stream.read(end)
    found: list[McapRecord] = []
    at = num_others = 0
    while at < end:
        if at + HEAD.size > end:
            raise ValueError("a record longer than its chunk")
        opcode, length = HEAD.unpack_from(body, at)
        begin, at = at + HEAD.size, at + HEAD.size + length
        if at > end or len(found) >= 2 * MAX_MESSAGES or num_others >= MAX_OTHERS:
            raise ValueError("a record longer than its chunk, or too many messages")
        if opcode == Opcode.CHANNEL and length <= MAX_CHANNEL_BYTES:
            found.append(Channel.read(ReadDataStream(BytesIO(body[begin:at]))))
        elif opcode == Opcode.MESSAGE:
            found.append(_message(body, begin, at))
        else:
            num_others += 1
    return found


def _message(body: bytes, begin: int, end: int) -> McapMessage:
    """Return a message from these bytes of a chunk, like mcap's reader in a third of the time."""
    if end - begin < _MESSAGE.size:
        raise ValueError("a record longer than it says")
    channel, sequence, log_time, publish_time = _MESSAGE.unpack_from(body, begin)
    data = body[begin + _MESSAGE.size : end]
    return McapMessage(channel, log_time, data, publish_time, sequence)


def number_of(text: str | None) -> int:
    """Return a whole number from metadata, which is text; 0: not a number."""
    return whole(text) or 0


def words_of(text: str) -> list[str]:
    """Return a command line from metadata, a JSON list; empty: not a list."""
    try:
        words = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return []
    return [str(word) for word in words] if isinstance(words, list) else []


class Growing:
    """The newest part of a run's recording. A look costs as much as was written since the last."""

    def __init__(self, newest: Callable[[], Path]) -> None:
        """Set up; ``newest`` returns the path of the part being written; each part opens alone."""
        self._newest = newest
        self._source: SessionSource | None = None
        self.store = Store()

    def look(self) -> Store:
        """Return the store with all whole chunks written so far."""
        path = self._newest()
        if self._source is None or self._source.path != path:
            self._open(path)
        while self._source is not None and (messages := self._source.poll(0)):
            self.store.apply_all(messages)
        self.store.settle()
        return self.store

    def _open(self, path: Path) -> None:
        with suppress(SessionError):  # nothing of it is written yet
            source = open_checked(path, partial(SessionSource, path, growing=True))
            self.close()
            self._source, self.store = source, Store()
            self.store.live = True

    def close(self) -> None:
        """Close the file."""
        if self._source is not None:
            self._source.close()
