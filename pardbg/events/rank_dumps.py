"""Facts about a rank's collectives from its Flight Recorder dump, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Place = tuple[str, int, str]
"""File, line and function."""


@dataclass(frozen=True, slots=True)
class DumpedOp:
    """A collective in a dump. ``place``: innermost frame outside of libraries, if known."""

    op: str
    """Name of the op, such as ``all_reduce``."""
    num_in: int
    """Number of elements, as ``num_out``."""
    num_out: int
    complete: bool
    place: Place | None


@dataclass(frozen=True, slots=True)
class GroupDump:
    """A rank's collectives on one group, by number: only those still in the dump's ring."""

    name: str
    description: str
    ranks: tuple[int, ...]
    """Members; empty: not known."""
    last: int
    """Number of the newest op issued; 0: none."""
    ops: Mapping[int, DumpedOp]


@dataclass(frozen=True, slots=True)
class RankDump:
    """Flight Recorder dump of one rank."""

    rank: int
    file: str
    groups: tuple[GroupDump, ...]
