"""Layout of a session file: names, channels and schemas; docs/session-format.md has the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from mcap.records import Channel, Schema

from pardbg.session import record_blocks
from pardbg.session.record_blocks import BATCHES
from pardbg.store.source import Message
from pardbg_agent import wire
from pardbg_agent.wire import Key

FORMAT: Final = 3
"""Number of the file format that is written and read."""
PROFILE: Final = "pardbg"
RUN_METADATA: Final = "pardbg.run"
END_METADATA: Final = "pardbg.end"
MAX_CHANNELS: Final = (1 << 16) - 2
"""Channel ids have 16 bits. Messages of further keys go to ``/other``."""
MAPS: Final = "msgpack"
RECORDS: Final = "x-pardbg-records"
"""Message encodings: those of ``message_blocks`` and ``record_blocks``."""
_KEY: Final = "key"
_HUB: Final = {
    Key.DEFINITION.value: "definitions", Key.OUTPUT.value: "output", Key.CONTROL.value: "events",
    Key.STATE.value: "state",
}  # fmt: skip
_PROCESS: Final = {Key.RECORDS.value: "records", Key.DEFINITION.value: "definitions"}


def _schema(number: int, name: str, encoding: str, content: object) -> Schema:
    return Schema(number, json.dumps(content, separators=(",", ":")).encode(), encoding, name)


_MAP_SCHEMA: Final = _schema(1, "pardbg.maps", "x-pardbg-layout", {
    "msgpack": ["[numbers, received_ns, sizes]", "map", "..."],
})  # fmt: skip
_RECORD_SCHEMA: Final = _schema(2, "pardbg.records", "x-pardbg-layout", {
    "tables": [
        {"columns": [column.name for column in columns],
         "plain": [column.name for column in columns if not column.differences]}
        for columns in (BATCHES, record_blocks.RECORDS)
    ],
    "record": wire.RECORD_FIELDS,
})  # fmt: skip
SCHEMAS: Final = (_MAP_SCHEMA, _RECORD_SCHEMA)


@dataclass(frozen=True, slots=True)
class Stream:
    """Facts about a channel's messages that a reader needs."""

    key: bytes
    """``wire.Key`` byte and process id; empty: each message has a key of its own."""
    encoding: str


def channel_of(key: bytes, prefix: str) -> Channel | None:
    """Return the channel of a key, without an id; None: the key has no channel of its own.

    ``prefix``: of the key's process, by ``prefix_of``. Empty key: messages with their own.
    """
    if not key:
        return Channel(0, "/other", MAPS, {}, 0)
    kind, proc = key[:1], key[1:]
    name = (_PROCESS if proc else _HUB).get(kind)
    if name is None or not proc.isascii():
        return None
    records = kind == Key.RECORDS.value
    return Channel(
        0, f"{prefix if proc else '/hub'}/{name}", RECORDS if records else MAPS,
        {_KEY: key.decode("ascii")}, (_RECORD_SCHEMA if records else _MAP_SCHEMA).id,
    )  # fmt: skip


def prefix_of(proc: bytes, rank: int | None) -> str:
    """Return the prefix of a process's topics."""
    return f"/process/{proc.decode('ascii', 'replace')}" if rank is None else f"/rank/{rank}"


def stream_of(channel: Channel) -> Stream:
    """Return the stream described by a file's channel."""
    key = channel.metadata.get(_KEY, "").encode("ascii", "replace")
    return Stream(key, channel.message_encoding)


def wrapped(message: Message) -> Message:
    """Return a message for ``/other``: a u16 length and the key before the payload."""
    key = message.key
    return replace(message, key=b"", payload=len(key).to_bytes(2, "little") + key + message.payload)


def unwrapped(message: Message) -> Message:
    """Return a message of ``/other`` with its original key; ValueError: the key is truncated."""
    if message.key:
        return message
    length, payload = int.from_bytes(message.payload[:2], "little"), message.payload[2:]
    if len(payload) < length:
        raise ValueError("a key longer than its message")
    return replace(message, key=payload[:length], payload=payload[length:])


Streams = dict[int, Stream]
"""Streams by channel id."""


def streams_of(channels: Mapping[int, Channel]) -> Streams:
    """Return the streams of a file's channels."""
    return {number: stream_of(channel) for number, channel in channels.items()}
