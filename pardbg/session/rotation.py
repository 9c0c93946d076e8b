"""A recording in parts: when one is large or old enough the next begins, the oldest are deleted.

``S.mcap``, ``S.0002.mcap``, … Each part can be opened alone, as it begins with every definition so
far. Quick to import: the writer is imported with the first part.
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
"""[key, payload] as sent."""


@dataclass(frozen=True, slots=True)
class PartLimits:
    """Limits of a part; 0: no limit. ``keep``: number of parts that are kept, 0: all."""

    max_bytes: int = 0
    max_ns: int = 0
    keep: int = 0

    def __bool__(self) -> bool:
        return bool(self.max_bytes or self.max_ns)


UNLIMITED: Final = PartLimits()


def part_path(first: Path, number: int) -> Path:
    """Return the path of a part: part 1 has the requested name, part 2 is ``S.0002.mcap``."""
    return first if number <= 1 else first.with_name(f"{first.stem}.{number:04}{first.suffix}")


@dataclass(slots=True)
class Rotation:
    """Rotation of a recording: the part being written, and when the next one begins."""

    number: int
    first: Path
    facts: RunFacts
    limits: PartLimits
    began_ns: int
    repeat: Callable[[int], Iterable[Wire]] = lambda number: ()
    """Function that returns the first messages of part ``number``: definitions, and the number."""

    def turn(self, writer: SessionWriter, now: int) -> SessionWriter:
        """Return the writer to use: the next part's if this one is full. Raises OSError."""
        limits = self.limits
        full = limits.max_bytes and writer.num_bytes >= limits.max_bytes
        old = limits.max_ns and now - self.began_ns >= limits.max_ns
        return self._next(writer, now) if full or old else writer

    def _next(self, before: SessionWriter, now: int) -> SessionWriter:
        """Begin the next part with all definitions; then end this part and drop the oldest."""
        import msgpack

        from pardbg.session.writer import SessionWriter
        from pardbg.store.store import NEXT_PART

        number = self.number + 1
        writer = SessionWriter(part_path(self.first, number), self.facts)
        for key, payload in self.repeat(number):
            writer.write(key, payload, now)
        writer.flush()
        note = {"k": DefKind.NOTE.value, "key": NEXT_PART, "value": writer.path.name}
        before.write(Key.DEFINITION.value, msgpack.packb(note), now)
        before.close()
        writer.on_chunk = before.on_chunk
        self.number, self.began_ns = number, now
        if self.limits.keep and number > self.limits.keep:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part_path(self.first, number - self.limits.keep))
        return writer
