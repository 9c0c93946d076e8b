"""Odd values for every field, from a seed."""

from __future__ import annotations

import math
import random
from typing import Any

import msgpack
import numpy as np

from pardbg.events.decode import RECORD_DTYPE
from pardbg_agent import wire

NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 255, 65536, 10**6, 10**9, 2**31 - 1, 2**31, 2**32, -(2**31), 2**53, 2**62,
    2**63 - 1, -(2**63), 2**64 - 1, math.inf, -math.inf, math.nan, 1e308, -1e308, 5e-324, 0.5,
)  # fmt: skip
TEXTS = (
    "", "x", "0", "0.n0.1", "../../etc/passwd", "\x1b]0;owned\x07", "\x1b[2J\x1b[31mred", "a\nb\rc",
    "=1+1", "é" * 50, "x" * 5000, "<script>",
    "\ud800".encode("utf-8", "replace").decode(), "\u202etxet", "F", "B",
    "%s%n", "[bold]x[/]", "NaN", "1F0", "held", "all", "world", "\x00", "9" * 400,
)  # fmt: skip


def odd(rng: random.Random, depth: int = 0) -> Any:
    """Any value that msgpack can carry."""
    kind = rng.randrange(10)
    if kind < 4:
        return rng.choice(NUMBERS)
    if kind < 6:
        return rng.choice(TEXTS)
    if kind == 6:
        return rng.choice((None, True, False, b"", b"\xff\xfe", b"x" * 300))
    if depth > 2:
        return None
    if kind == 7:
        return [odd(rng, depth + 1) for _ in range(rng.choice((0, 1, 2, 5, 9)))]
    if kind == 8:
        made = {}
        for _ in range(rng.choice((0, 1, 3))):
            key = odd(rng, 9)
            made[key if isinstance(key, (str, int, float, bytes)) else "k"] = odd(rng, depth + 1)
        return made
    return [rng.randrange(100) for _ in range(rng.choice((1, 100, 5000)))]


def mutated_value(value: Any, rng: random.Random) -> Any:
    """The value with one thing in it, at any depth, replaced, removed or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        made = dict(value)
        key = rng.choice(list(made))
        way = rng.randrange(8)
        if way == 0:
            del made[key]
        elif way == 1:
            made[rng.choice(TEXTS)] = made[key]
        else:
            made[key] = mutated_value(made[key], rng)
        return made
    if isinstance(value, list) and value and rng.random() < 0.8:
        items = list(value)
        at = rng.randrange(len(items))
        way = rng.randrange(6)
        if way == 0:
            del items[at]
        elif way == 1:
            items += items
        else:
            items[at] = mutated_value(items[at], rng)
        return items
    return odd(rng)


def mutated_map(payload: bytes, rng: random.Random) -> bytes:
    """A msgpack map with odd fields; sometimes bytes that are none."""
    try:
        value = msgpack.unpackb(payload, strict_map_key=False)
        for _ in range(rng.choice((1, 1, 2, 4))):
            value = mutated_value(value, rng)
        return bytes(msgpack.packb(value))
    except (ValueError, TypeError, OverflowError):
        return rng.randbytes(rng.randrange(40))


_LIMITS = {name: np.iinfo(RECORD_DTYPE[name]) for name in RECORD_DTYPE.names or ()}


def mutated_records(payload: bytes, rng: random.Random) -> bytes:
    """A records payload with odd fields in some of its records, or in its head."""
    size = wire.FRAME.size
    if rng.random() < 0.1 or len(payload) <= size:
        head = list(wire.FRAME.unpack_from(payload.ljust(size, b"\0")))
        head[rng.randrange(len(head))] = rng.choice((0, 1, 2, 40000))
        return wire.FRAME.pack(*head) + payload[size:]
    body = np.frombuffer(payload[size:], dtype=RECORD_DTYPE).copy()
    for _ in range(rng.choice((1, 2, 5, 20))):
        name = rng.choice(list(_LIMITS))
        low, high = int(_LIMITS[name].min), int(_LIMITS[name].max)
        wanted = rng.choice(NUMBERS)
        if rng.random() < 0.3:
            value = int(body[name][rng.randrange(len(body))])
        elif isinstance(wanted, float):
            value = int(np.array(wanted, np.float64).view(np.int64)) if name == "a" else 3
        else:
            value = wanted
        where = slice(None) if rng.random() < 0.1 else rng.randrange(len(body))
        body[name][where] = min(max(value, low), high)
    return payload[:size] + body.tobytes()


def mutated_message(key: bytes, payload: bytes, rng: random.Random) -> bytes:
    return (mutated_records if key[:1] == wire.Key.RECORDS.value else mutated_map)(payload, rng)
