"""Blocks: messages of one channel and chunk, as a head and the unchanged payloads.

Payloads are msgpack maps, so a block is a sequence of msgpack objects, of which the first is the
head: numbers, times of receipt and sizes, the first two as differences to the one before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

import msgpack

from pardbg.store.source import Message

MAX_MESSAGES: Final = 1 << 16
"""Maximum number of messages of one chunk; a writer closes the chunk before that."""
_MOST: Final = 1 << 62
"""Upper bound of numbers and times, ns."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """Messages, with each one's number in the file."""

    numbers: list[int]
    messages: list[Message]

    def extend(self, other: Numbered) -> None:
        """Add other numbered messages."""
        self.numbers.extend(other.numbers)
        self.messages.extend(other.messages)

    def in_order(self) -> list[Message]:
        """Return the messages sorted by their numbers."""
        order = sorted(range(len(self.numbers)), key=self.numbers.__getitem__)
        return [self.messages[place] for place in order]


@dataclass(frozen=True, slots=True)
class Block:
    """Messages of one key as one block."""

    key: bytes
    sequence: int
    """Number of the block's first message in the file."""
    first_ns: int
    last_ns: int
    """Time of receipt of the block's last message; ``first_ns``: of its first."""
    data: bytes


def block_of(numbered: Numbered, data: bytes) -> Block:
    """Return a block with its messages' key, first number and times."""
    first, last = numbered.messages[0], numbered.messages[-1]
    return Block(first.key, numbered.numbers[0], first.received_ns, last.received_ns, data)


def encode(numbered: Numbered) -> Block:
    """Return messages of one key encoded as a block."""
    messages = numbered.messages
    head = msgpack.packb([
        _differences(numbered.numbers),
        _differences([message.received_ns for message in messages]),
        [len(message.payload) for message in messages],
    ])  # fmt: skip
    return block_of(numbered, b"".join((head, *(message.payload for message in messages))))


def decode(key: bytes, data: bytes) -> Numbered:
    """Return a block's messages. Raises ValueError."""
    unpacker = msgpack.Unpacker(
        max_buffer_size=max(len(data), 1), max_array_len=MAX_MESSAGES, max_map_len=0
    )
    unpacker.feed(data)
    numbers, times, sizes = _head(unpacker)
    ends = list(accumulate(sizes, initial=unpacker.tell()))
    if ends[-1] != len(data) or min(sizes, default=0) < 0:
        raise ValueError("payloads longer or shorter than the block")
    if not len(numbers) == len(times) == len(sizes):
        raise ValueError("a head with rows of different lengths")
    if times and not 0 <= min(*times, *numbers) <= max(*times, *numbers) <= _MOST:
        raise ValueError("a time before or after all clocks")
    return Numbered(numbers, [
        Message(key, data[begin:end], time)
        for time, (begin, end) in zip(times, pairwise(ends), strict=True)
    ])  # fmt: skip


def _head(unpacker: msgpack.Unpacker) -> tuple[list[int], list[int], list[int]]:
    try:
        numbers, times, sizes = unpacker.unpack()
        if not all(type(value) is int for row in (numbers, times, sizes) for value in row):
            raise ValueError("a head of other things than numbers")
    except (msgpack.UnpackException, TypeError) as error:
        raise ValueError("a block without a head") from error
    return list(accumulate(numbers)), list(accumulate(times)), sizes


def _differences(values: Iterable[int]) -> list[int]:
    return [after - before for before, after in pairwise((0, *values))]
