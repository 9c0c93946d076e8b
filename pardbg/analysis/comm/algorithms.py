"""Collectives written out in sends and receives, step by step, as the program's spans name them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pardbg.analysis.base.matched import P2PRow


@dataclass(frozen=True, slots=True)
class Move:
    """One message of a collective that is written out in sends and receives."""

    src: int
    dst: int
    chunk: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RingStep:
    """Where an algorithm of many messages is: the step of the rank that is furthest behind."""

    phase: str
    part: int
    parts: int
    moves: tuple[Move, ...]
    """What each rank sent or sends in it, by sender."""
    behind: int
    """That rank."""
    slowest: tuple[int, int] | None
    """The edge whose messages take longest from both sides' issue to completion (median)."""
    slowest_bps: float | None  # of that edge, while a message is on it


def ring_step(rows: Sequence[P2PRow]) -> RingStep | None:
    """Where the newest such collective is; None if no message says its part and chunk.

    Ranks run up to a step apart from their neighbours. The step is that of the rank furthest
    behind: all others have been there, so its row of moves is whole.
    """
    said = [row for row in rows if row.parts > 0 and row.chunk >= 0 and row.send_ns is not None]
    newest = {row.src: row for row in sorted(said, key=_sent)}
    if not newest:
        return None
    behind = min(newest.values(), key=_sent)
    same = [row for row in said if _place(row) == _place(behind)]
    moves = {row.src: row for row in sorted(same, key=_sent)}
    slowest, speed = _slowest(said)
    return RingStep(
        phase=behind.phase,
        part=behind.part,
        parts=behind.parts,
        moves=tuple(Move(r.src, r.dst, r.chunk, r.bytes) for _, r in sorted(moves.items())),
        behind=behind.src,
        slowest=slowest,
        slowest_bps=speed,
    )


def _sent(row: P2PRow) -> int:
    return row.send_ns or 0


def _place(row: P2PRow) -> tuple[str, str, int, int]:
    return row.group, row.phase, row.part, row.parts


def _slowest(rows: Sequence[P2PRow]) -> tuple[tuple[int, int] | None, float | None]:
    """(edge, bytes/s): the least of the edges' medians."""
    speeds: dict[tuple[int, int], list[float]] = defaultdict(list)
    for row in rows:
        taken = row.transfer_ns
        if taken:
            speeds[row.src, row.dst].append(row.bytes * 1e9 / taken)
    if len(speeds) < 2:
        return None, None
    edge = min(speeds, key=lambda e: median(speeds[e]))
    return edge, median(speeds[edge])
