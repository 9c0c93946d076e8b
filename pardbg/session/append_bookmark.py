"""Bookmarks put into a session that was recorded: one more small chunk at the file's end.

A bookmark is a CONTROL message like those a live run records, so a file is read in one way. The
file is never changed in place: a copy with the new chunk is written beside it, forced to the disk
and takes its name, so that at every moment the name has a whole session behind it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgpack
from mcap.data_stream import RecordBuilder
from mcap.records import Channel
from mcap.records import Message as McapMessage

from pardbg.session import container
from pardbg.session.reader import SessionError
from pardbg.session.summary import Summary, read_summary
from pardbg.store.bookmarks import BOOKMARK, UNMARK, Bookmark
from pardbg_agent.wire import Key

TOPIC: Final = "control"
_EMPTY: Final = {"key": Key.CONTROL.value.decode(), "proc": ""}


def add_bookmarks(path: Path, marks: Sequence[Bookmark], t_ns: int) -> None:
    """Write ``marks`` (an empty text takes the mark at its time away) into the file at ``path``.

    ``t_ns``: the session's newest time. Raises SessionError, one line for the user.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.marks")
    try:
        if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
            raise SessionError(f"{path.name} is read-only: the bookmark is here until you leave")
        with open(path, "rb") as old, open(fresh, "xb") as new:
            summary = read_summary(old)
            if summary is None or not summary.known or summary.statistics is None:
                raise SessionError(
                    f"{path.name} has no whole summary: `pardbg repair` it to keep bookmarks"
                )
            shutil.copymode(path, fresh)
            _copy(old, new, summary.data_end)
            _append(new, summary, [_map(mark, t_ns) for mark in marks], t_ns)
            new.flush()
            os.fsync(new.fileno())
        os.replace(fresh, path)
    except OSError as error:
        raise SessionError(f"cannot keep the bookmark: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(fresh)


def _map(mark: Bookmark, t_ns: int) -> dict[str, Any]:
    event = BOOKMARK if mark.text else UNMARK
    return {"t_ns": t_ns, "event": event, "at_ns": mark.t_ns, "text": mark.text,
            "wall_ns": time.time_ns()}  # fmt: skip


def _copy(old: BinaryIO, new: BinaryIO, count: int) -> None:
    old.seek(0)
    while count > 0:
        block = old.read(min(count, 8 << 20))
        if not block:
            raise SessionError("the file became shorter while it was copied")
        new.write(block)
        count -= len(block)


def _append(file: BinaryIO, summary: Summary, maps: Sequence[dict[str, Any]], t_ns: int) -> None:
    """The chunk, the end of the data, and the summary with the chunk in it."""
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
    container.write_chunk(
        file, summary, container.built(builder), {channel.id: len(maps)}, log_ns, log_ns
    )
    container.write_summary(file, summary)


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
