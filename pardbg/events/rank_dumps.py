"""What a rank's Flight Recorder dump says of its collectives, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Place = tuple[str, int, str]
"""File, line and function."""


@dataclass(frozen=True, slots=True)
class DumpedOp:
    """A dump's collective. ``place``: innermost frame outside of libraries, if it has stacks."""

    op: str
    """As ``all_reduce``."""
    num_in: int
    """Elements, as ``num_out``."""
    num_out: int
    complete: bool
    place: Place | None


@dataclass(frozen=True, slots=True)
class GroupDump:
    """A rank's collectives on one group, by number: those that its ring still had."""

    name: str
    description: str
    ranks: tuple[int, ...]
    """Members; empty: not known."""
    last: int
    """Number of the newest op issued; 0: none."""
    ops: Mapping[int, DumpedOp]


@dataclass(frozen=True, slots=True)
class RankDump:
    """One rank's dump."""

    rank: int
    file: str
    groups: tuple[GroupDump, ...]
