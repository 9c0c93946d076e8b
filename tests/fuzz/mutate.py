"""Damage to session files, from a seed: bytes, lengths, structure, content behind a good CRC."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import zstandard
from mcap.data_stream import RecordBuilder
from mcap.records import Chunk

from pardbg.session.writer import RunFacts, SessionWriter
from pardbg_agent import wire
from tests.unit.analysis.test_schedule import two_ranks
from tests.unit.trace_builder import Trace, ns

FACTS = RunFacts("run-1", "1f1b", "host", ("python", "train.py"), "/", "", ns(0), 1 << 60)
ODD_NUMBERS = (0, 1, 127, 255, 65535, 2**31 - 1, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1)
MAGIC_BYTES = 8


def small_session(path: Path) -> Path:
    """A pipeline, collectives, output, control, states: a little of everything, some chunks."""
    trace = two_ranks()
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 12, 13, step=0)
        proc.phase("forward", 0, 5)
        proc.step(0, 0, 14)
        proc.metric("loss", 14, 2.5)
        proc.memory("rss", 14, 1 << 20)
        proc.held(14, 15)
    say_things(trace)
    writer = SessionWriter(path, FACTS)
    for at, message in enumerate(trace.messages):
        writer.write(message.key, message.payload, message.received_ns)
        if at % 6 == 5:
            writer.flush()
    writer.close(0)
    return path


def say_things(trace: Trace) -> None:
    trace.flush()
    for t in range(4):
        trace.output(t, f"line {t}", rank=t % 2)
    trace.hub(wire.Key.CONTROL, 14, event="pause", by="view-1", text="held", mode="held")
    rows = {p.proc: {"step": 0, "open": 1, "open_op": "all_reduce", "open_since_ns": ns(12),
                     "heartbeat_ns": ns(14), "alive": True} for p in trace.ranks}  # fmt: skip
    trace.state(14, **rows)
    trace.end(16)


def mutated(data: bytes, seed: int) -> bytes:
    """The file with one to four injuries."""
    rng = random.Random(seed)
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if len(made) > 2 * MAGIC_BYTES:
            made = rng.choice(INJURIES)(made, rng)
    return bytes(made)


def flip(data: bytearray, rng: random.Random) -> bytearray:
    for _ in range(rng.choice((1, 1, 8, 64))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def overwrite(data: bytearray, rng: random.Random) -> bytearray:
    at, length = rng.randrange(len(data)), rng.choice((1, 4, 8, 100))
    data[at : at + length] = rng.randbytes(length)
    return data


def cut(data: bytearray, rng: random.Random) -> bytearray:
    return data[: rng.randrange(len(data))]


def remove(data: bytearray, rng: random.Random) -> bytearray:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 8, 200))]
    return data


def insert(data: bytearray, rng: random.Random) -> bytearray:
    at = rng.randrange(len(data))
    data[at:at] = rng.randbytes(rng.choice((1, 9, 300)))
    return data


def repeat(data: bytearray, rng: random.Random) -> bytearray:
    """A stretch of the file twice: chunks, footers, halves of either."""
    a, b = sorted(rng.randrange(len(data)) for _ in range(2))
    at = rng.randrange(len(data))
    data[at:at] = data[a:b]
    return data


def odd_number(data: bytearray, rng: random.Random) -> bytearray:
    """A length, an offset or a count that lies."""
    code = rng.choice(["<Q", "<I", "<H", "<q"])
    size = struct.calcsize(code)
    at = rng.randrange(max(1, len(data) - size))
    value = rng.choice(ODD_NUMBERS)
    limit = (1 << 8 * size) - 1
    signed = struct.calcsize(code) == 8 and code.endswith("q")
    number = min(value, (1 << 63) - 1) if signed else min(value, limit)
    data[at : at + size] = struct.pack(code, number)
    return data


def inside_chunk(data: bytearray, rng: random.Random) -> bytearray:
    """Content that a good CRC vouches for: a hostile file, not a damaged one."""
    places = [at for at in range(MAGIC_BYTES, len(data) - 60) if _is_chunk(data, at)]
    if not places:
        return data
    at = rng.choice(places)
    length = int.from_bytes(data[at + 1 : at + 9], "little")
    stored = data[at + 9 + 40 : at + 9 + length]
    try:
        plain = bytearray(zstandard.ZstdDecompressor().decompress(bytes(stored), 16 << 20))
    except zstandard.ZstdError:
        return data
    for _ in range(rng.choice((1, 3, 10))):
        if len(plain) > 16:
            plain = rng.choice((flip, overwrite, remove, insert, odd_number))(plain, rng)
    out = RecordBuilder()
    Chunk(
        "zstd", zstandard.ZstdCompressor().compress(bytes(plain)), 1 << 60, 1 << 60,
        zlib.crc32(plain), len(plain),
    ).write(out)  # fmt: skip
    data[at : at + 9 + length] = bytes(out.end())
    return data


def _is_chunk(data: bytearray, at: int) -> bool:
    return data[at] == 6 and data[at + 37 : at + 45] == b"\x04\x00\x00\x00zstd"


INJURIES = (
    flip, overwrite, cut, remove, insert, repeat, odd_number, inside_chunk, inside_chunk,
    inside_chunk,
)  # fmt: skip
