"""A recording in parts: when one is large or old enough the next one begins, the oldest go.

``S.mcap``, ``S.0002.mcap``, … Each can be opened alone: it begins with every definition so far.
Quick to import: the writer comes with the first part.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pardbg_agent.wire import DefKind, Key

if TYPE_CHECKING:
    from pardbg.session.writer import RunFacts, SessionWriter

Wire = tuple[bytes, bytes]
"""[key, payload] as it travels."""


@dataclass(frozen=True, slots=True)
class PartLimits:
    """When a part is full; 0: never. ``keep``: how many parts are kept, 0: all."""

    max_bytes: int = 0
    max_ns: int = 0
    keep: int = 0

    def __bool__(self) -> bool:
        return bool(self.max_bytes or self.max_ns)


UNLIMITED: Final = PartLimits()


def part_path(first: Path, number: int) -> Path:
    """Part 1 has the name that was asked for, part 2 is ``S.0002.mcap``."""
    return first if number <= 1 else first.with_name(f"{first.stem}.{number:04}{first.suffix}")


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
        import msgpack

        from pardbg.session.writer import SessionWriter
        from pardbg.store.store import NEXT_PART

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
