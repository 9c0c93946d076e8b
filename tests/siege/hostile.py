"""Session files that claim, repeat, nest and compress more than a file of their size would hold."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgpack
import zstandard
from mcap.data_stream import RecordBuilder
from mcap.records import Channel, Chunk
from mcap.records import Message as McapMessage

from pardbg.session import message_blocks
from pardbg.session.appending import built
from pardbg.session.layout import MAPS, RECORDS
from pardbg.session.message_blocks import Numbered
from pardbg.session.writer import RunFacts, SessionWriter
from pardbg.store.source import Message
from pardbg_agent import wire
from pardbg_agent.wire import DefKind, Key
from tests.fuzz.mutate import mutated
from tests.siege.values import mutated_message

FACTS: Final = RunFacts("run-1", "x", "host", ("python", "train.py"), "/", "", 1 << 40, 1 << 60)
HUGE: Final = (10**4, 65_535, 10**5, 2**20 - 1, 2**24, 10**9, 2**31 - 1, 2**32, 2**53, 2**61)
LARGE_BYTES: Final = 60 << 20
"""Of a bomb's chunk, unpacked: as much as a reader takes at once."""


def hostile(messages: Sequence[Message], rng: random.Random, path: Path) -> None:
    """Write a session made of these messages, with something in it that is not so."""
    way = rng.randrange(10)
    if way < 5:
        made = _fields(messages, rng)
    elif way < 8:
        made = _amplified(messages, rng)
    else:
        made = list(messages)
    _write(path, made)
    if way >= 8 or rng.random() < 0.2:
        path.write_bytes(mutated(path.read_bytes(), rng.randrange(1 << 32)))
    if way == 7 or rng.random() < 0.05:
        path.write_bytes(bombed(path.read_bytes(), rng))


def _write(path: Path, messages: Sequence[Message]) -> None:
    writer = SessionWriter(path, FACTS)
    for message in messages:
        writer.write(message.key, message.payload, message.received_ns)
    writer.close(0)


def _fields(messages: Sequence[Message], rng: random.Random) -> list[Message]:
    share = rng.choice((0.002, 0.02, 0.2))
    made = []
    for message in messages:
        payload = message.payload
        if rng.random() < share:
            payload = mutated_message(message.key, payload, rng)
        made.append(Message(message.key, payload, message.received_ns))
    return made


def _amplified(messages: Sequence[Message], rng: random.Random) -> list[Message]:
    """Some messages again and again, made larger, or about things that are far too many."""
    made = list(messages)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(made))
        made[at:at] = rng.choice(_WAYS)(made[at], rng)
    return made


def _repeated(message: Message, rng: random.Random) -> list[Message]:
    """The same, under the names of other processes where it is of one."""
    number = rng.choice((100, 3000, 40_000))
    own = rng.random() < 0.5 or message.key[1:] == b""
    keys = (message.key if own else b"%s%d.n.%d" % (message.key[:1], i % 7, i)
            for i in range(number))  # fmt: skip
    most = max(1, LARGE_BYTES // max(1, len(message.payload)))
    return [Message(key, message.payload, message.received_ns)
            for key, _ in zip(keys, range(most), strict=False)]  # fmt: skip


def _defined(message: Message, rng: random.Random) -> list[Message]:
    """Definitions with huge numbers of everything."""
    n, many = rng.choice(HUGE), rng.choice((10, 1000, 60_000))
    ranks = [rng.choice((i, n + i)) for i in range(many)]
    wide = {str(rank): [f"{i % 9}F{i}" for i in range(rng.choice((3, 100)))] for rank in ranks}
    maps: list[dict[str, Any]] = [
        {"k": DefKind.PROCESS, "rank": min(n, 2**20 - 1), "world_size": n, "start_ns": n,
         "host": "h", "epoch": n, "level": n, **{f"more{i}": i for i in range(many)}},
        {"k": DefKind.GROUP, "id": 1, "key": "g", "name": "g", "axis": "pp", "ranks": ranks,
         "backend": "gloo"},
        {"k": DefKind.PLAN, "schedule": "1F1B", "group": "g", "ranks": ranks, "num_stages": n,
         "num_microbatches": n, "num_virtual": n, "order": wide, "source": "schedule"},
        {"k": DefKind.PLAN, "schedule": "1F1B", "group": "pp", "ranks": [0, 1, 2, 3],
         "num_stages": n, "num_microbatches": n, "num_virtual": rng.choice((1, n)),
         "order": {"0": [f"{n}F{n}", "0F0"], "1": [f"1F{n}"]}, "source": "schedule"},
        {"k": DefKind.STAGE, "stage": n, "rank": 0, "num_stages": n, "parameters": n},
        {"k": DefKind.MODEL, "zero": 3, "shards": n, "parameters_bytes": n, "optimizer": "Adam"},
        {"k": DefKind.NOTE, "key": rng.choice(("recipe", "paced", "rehearsed", "part", "x")),
         "value": rng.choice((n, ranks, [{}] * many, {"a": ranks}))},
        {"k": DefKind.EXCEPTION, "t_ns": n, "type": "E", "text": "x" * many, "thread": "t",
         "frames": [["a.py", n, "f"]] * many, "step": n},
        {"k": DefKind.CLOCK, "proc": message.key[1:].decode("ascii", "replace"), "offset_ns": n,
         "error_ns": n, "t_ns": n},
        {"k": DefKind.NAME, "id": n, "s": "x" * many},
    ]  # fmt: skip
    key = Key.DEFINITION.value + message.key[1:]
    return [Message(key, msgpack.packb(said), message.received_ns)
            for said in rng.sample(maps, rng.choice((1, 2, len(maps))))]  # fmt: skip


def _nested(message: Message, rng: random.Random) -> list[Message]:
    """A map that takes far more memory than bytes: empty maps and lists, or headers that lie."""
    number = rng.choice((1000, 130_000))
    one = rng.choice((b"\x80", b"\x90", b"\x81\x01\x02", b"\xa2ab"))
    rows = rng.choice((1, 100))
    head = b"\xdd" + number.to_bytes(4, "big")
    body = b"\xdc" + rows.to_bytes(2, "big") + (head + one * number) * rows
    if rng.random() < 0.2:
        lies = (b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xc6\xff\xff\xff\xff")
        body = rng.choice((*lies, b"\x91" * 10_000))
    kind = rng.choice((b"\xa4note", b"\xa7process", b"\xa4plan", b"\xa5event"))
    payload = b"\x84\xa1k" + kind + b"\xa4t_ns\x05\xa3key\xa1x\xa5value" + body
    key = rng.choice((Key.DEFINITION, Key.CONTROL, Key.STATE, Key.OUTPUT)).value
    return [Message(key + message.key[1:], payload, message.received_ns)] * rng.choice((1, 4))


def _records(message: Message, rng: random.Random) -> list[Message]:
    """Very many records, all alike."""
    count = rng.choice((1000, 100_000, 900_000))
    step, n = rng.choice((0, 1, 5)), rng.choice(HUGE)
    kind = rng.choice(list(wire.Kind))
    one = wire.RECORD.pack(
        kind, rng.randrange(8), rng.choice((0, 2, 6)), rng.choice((1, min(n, 2**32 - 1))), n, n,
        min(n, 2**32 - 1), rng.choice((step, min(n, 2**32 - 1))), rng.choice((0, 1, 65_535)),
        rng.choice((-1, 0, 32_767)), rng.choice((-1, 0, 32_767)), rng.choice((-1, 1, 32_767)), n,
        n, 1,
    )  # fmt: skip
    proc = message.key[1:] or b"0.n0.1"
    head = wire.FRAME.pack(wire.PROTOCOL_VERSION, 0, count, rng.choice((0, n)), 0, 0)
    times = rng.choice((1, 1, 4))
    return [Message(b"R%s" % proc + b"%d" % i, head + one * count, message.received_ns)
            for i in range(times)]  # fmt: skip


_WAYS: Final[tuple[Callable[[Message, random.Random], list[Message]], ...]] = (
    _repeated, _defined, _defined, _nested, _records,
)  # fmt: skip


def bombed(data: bytes, rng: random.Random) -> bytes:
    """The file with chunks before its end that are small packed and large unpacked."""
    size = rng.choice((1 << 20, LARGE_BYTES, LARGE_BYTES))
    records = RecordBuilder()
    if rng.random() < 0.5:
        key = rng.choice(("O", "C", "S", "D0.n.1", "R0.n.1", ""))
        Channel(9, "x", rng.choice((MAPS, RECORDS)), {"key": key}, 0).write(records)
        block = message_blocks.encode(Numbered([1], [Message(b"O", b"\x81\xa1k\xa1x", 1)])).data
        data = rng.choice((b"", b"\x81\xa1k\xa1x", bytes(1000), block))
        McapMessage(9, 1, data, 1, 1).write(records)
    plain = built(records) or bytes(31)
    plain = rng.choice((plain * (size // len(plain)), bytes(size)))
    out = RecordBuilder()
    claimed = rng.choice((len(plain), len(plain), 1, 0, 1 << 62, 64 << 20))
    packed = zstandard.ZstdCompressor(1, write_content_size=rng.random() < 0.7).compress(plain)
    Chunk("zstd", packed, 1, 1, rng.choice((0, zlib.crc32(plain))), claimed).write(out)
    end = len(data) - 300 if len(data) > 600 else len(data)
    return data[:end] + built(out) * rng.choice((1, 8, 60)) + data[end:]
