"""Bookmarks put into a session that was recorded: one more small chunk at the file's end.

A bookmark is a CONTROL message like those a live run records, so a file is read in one way, by
older versions too. The chunk takes the place of the file's summary, which is written anew behind
it: some kilobytes, however long the recording is. What was recorded is never written over, so it
is whole whatever happens in the middle; a file that then ends without a summary reads as one that
was cut off, and `pardbg repair` makes a new one.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgpack
from mcap.data_stream import RecordBuilder
from mcap.records import Channel
from mcap.records import Message as McapMessage

from pardbg.session import container
from pardbg.session.reader import SessionError
from pardbg.session.summary import Summary, read_summary
from pardbg.store.history import BOOKMARK, UNMARK, Bookmark
from pardbg_agent.wire import Key

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
    """Write ``end`` from offset ``begin`` on, to the disk; put back what was there if that fails
    (a full disk)."""
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
    event = BOOKMARK if mark.text else UNMARK
    return {"t_ns": t_ns, "event": event, "at_ns": mark.t_ns, "text": mark.text,
            "wall_ns": time.time_ns()}  # fmt: skip


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
