"""A recording in parts: when one is full, and what it is called. Quick to import."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final


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
