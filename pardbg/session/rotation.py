"""A recording in parts: when one is large or old enough the next one begins, the oldest go.

``S.mcap``, ``S.0002.mcap``, … Each can be opened alone: it begins with every definition so far.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgpack

from pardbg.session.part_files import PartLimits, part_path
from pardbg.session.writer import RunFacts, SessionWriter
from pardbg.store.store import NEXT_PART
from pardbg_agent.wire import DefKind, Key

MIN_PART_BYTES: Final = 64 << 10
Wire = tuple[bytes, bytes]
"""[key, payload] as it travels."""


class Parts:
    """Writes like a SessionWriter, into one part after the other. Raises OSError."""

    def __init__(
        self,
        writer: SessionWriter,
        number: int,
        first: Path,
        facts: RunFacts,
        limits: PartLimits,
        began_ns: int,
    ) -> None:
        self._writer, self.number = writer, number
        self._first, self._facts, self._limits = first, facts, limits
        self._began_ns = began_ns
        self.repeat: Callable[[int], Iterable[Wire]] = lambda number: ()
        """What part ``number`` begins with: definitions, and which part it is."""

    @property
    def path(self) -> Path:
        """Path of the part being written."""
        return self._writer.path

    @property
    def num_messages(self) -> int:
        return self._writer.num_messages

    @property
    def num_written(self) -> int:
        return self._writer.num_written

    @property
    def written_ns(self) -> int:
        return self._writer.written_ns

    def write(self, key: bytes, payload: bytes, received_ns: int) -> None:
        self._writer.write(key, payload, received_ns)

    def tick(self, now: int) -> None:
        self._writer.tick(now)
        limits = self._limits
        full = limits.max_bytes and self._writer.num_bytes >= limits.max_bytes
        old = limits.max_ns and now - self._began_ns >= limits.max_ns
        if full or old:
            self._next(now)

    def flush(self) -> None:
        self._writer.flush()

    def close(self, code: int | None = None, hub_restarts: int = 0) -> None:
        self._writer.close(code, hub_restarts)

    def abandon(self) -> None:
        self._writer.abandon()

    def _next(self, now: int) -> None:
        """The next part, whole from its first message on; then this one ends, the oldest goes."""
        number = self.number + 1
        writer = SessionWriter(part_path(self._first, number), self._facts)
        for key, payload in self.repeat(number):
            writer.write(key, payload, now)
        writer.flush()
        note = {"k": DefKind.NOTE.value, "key": NEXT_PART, "value": writer.path.name}
        self._writer.write(Key.DEFINITION.value, msgpack.packb(note), now)
        self._writer.close()
        self._writer, self.number, self._began_ns = writer, number, now
        if self._limits.keep and number > self._limits.keep:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part_path(self._first, number - self._limits.keep))
