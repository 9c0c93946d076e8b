"""Bookmarks put into a recorded session.

[Note: bookmarks put into a recorded session] A bookmark is a CONTROL message like those a live run
records, so a file is read in one way. It comes in one more small chunk, in the place of the file's
summary, which is written anew behind it: some kilobytes, however long the recording is. What was
recorded is never written over, so it is whole whatever happens in the middle; a file that then ends
without a summary reads as one that was cut off, and `pardbg repair` makes a new one.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

import msgpack
from mcap.summary import Summary
from mcap.writer import Writer

from pardbg.events import control_facts
from pardbg.events.control_events import ControlEvent
from pardbg.session import appending, layout, message_blocks
from pardbg.session.appending import read_summary, statistics_of, summary_place
from pardbg.session.message_blocks import Numbered
from pardbg.session.reader import SessionError
from pardbg.store.history import Bookmark
from pardbg.store.source import Message
from pardbg_agent.wire import Key

_KEY: Final = Key.CONTROL.value


def add_bookmarks(path: Path, marks: Sequence[Bookmark], t_ns: int) -> None:
    """Write ``marks`` (an empty text removes the mark at its time) into the file at ``path``.

    ``t_ns``: the session's newest time. Raises SessionError, one line for the user.
    """
    try:
        if not os.access(path, os.W_OK):
            raise SessionError(f"{path.name} is read-only: the bookmark is here until you leave")
        with open(path, "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # another viewer of the same file waits
            place, summary = summary_place(file), read_summary(file)
            end = None
            if place is not None and summary is not None and summary.statistics is not None:
                end = _end(place[0], summary, [_packed(mark, t_ns) for mark in marks], t_ns)
            if place is None or end is None:
                raise SessionError(
                    f"{path.name} has no whole summary: `pardbg repair` it to keep bookmarks"
                )
            _replace_end(file, place[0], end)
    except OSError as error:
        raise SessionError(f"cannot keep the bookmark: {error.strerror or error}") from None


def _replace_end(file: BinaryIO, begin: int, end: bytes) -> None:
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


def _packed(mark: Bookmark, t_ns: int) -> bytes:
    event = ControlEvent(control_facts.Bookmark(mark.t_ns, mark.text), t_ns=t_ns)
    fields = {**event.plain(), "wall_ns": time.time_ns()}
    packed: bytes = msgpack.packb(fields)
    return packed


def _end(
    data_end: int, summary: Summary, packed: Sequence[bytes], t_ns: int
) -> bytes | None:  # fmt: skip
    """Return a chunk of the marks, the end of the data, and the summary including the chunk, as
    they are written from ``data_end`` on; None: the channels' ids are not a writer's."""
    made = _Placed(data_end)
    try:
        writer = appending.continued(made, summary)
        channel = _channel(writer, summary)
    except ValueError:
        return None
    statistics = statistics_of(summary)
    log_ns = max(statistics.message_end_time, statistics.message_start_time)
    messages = [Message(_KEY, each, t_ns) for each in packed]
    block = message_blocks.encode(Numbered([*range(len(messages))], messages))
    writer.add_message(channel, log_ns, block.data, log_ns)
    appending.finish(writer, made, summary)
    return made.getvalue()


def _channel(writer: Writer, summary: Summary) -> int:
    """Return the channel of CONTROL messages; a new one if the session has none."""
    for number, channel in summary.channels.items():
        if layout.stream_of(channel).key == _KEY:
            return number
    made = layout.channel_of(_KEY, "")
    assert made is not None
    return writer.register_channel(made.topic, made.message_encoding, made.schema_id, made.metadata)


class _Placed(BytesIO):
    """Buffer of bytes for an offset of a file, with positions relative to that file."""

    def __init__(self, offset: int) -> None:
        super().__init__()
        self._offset = offset

    def tell(self) -> int:
        return self._offset + super().tell()

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return super().seek(offset - self._offset, whence)
