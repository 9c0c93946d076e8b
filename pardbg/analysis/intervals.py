"""Sets of time as sorted, disjoint (begin, end) pairs in integer ns."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[int, int]


def union(parts: Iterable[Interval]) -> list[Interval]:
    """Merge overlapping and touching intervals; empty ones vanish."""
    merged: list[Interval] = []
    for begin, end in sorted(p for p in parts if p[1] > p[0]):
        if merged and begin <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return merged


def clip(parts: Iterable[Interval], begin: int, end: int) -> list[Interval]:
    """What of ``parts`` lies in [begin, end]."""
    clipped = ((max(a, begin), min(b, end)) for a, b in parts)
    return [(a, b) for a, b in clipped if b > a]


def subtract(parts: Iterable[Interval], holes: Iterable[Interval]) -> list[Interval]:
    """``parts`` without ``holes``."""
    left = union(parts)
    for begin, end in union(holes):
        next_left: list[Interval] = []
        for a, b in left:
            if b <= begin or a >= end:
                next_left.append((a, b))
                continue
            if a < begin:
                next_left.append((a, begin))
            if b > end:
                next_left.append((end, b))
        left = next_left
    return left


def intersect(a: Iterable[Interval], b: Iterable[Interval]) -> list[Interval]:
    """What lies in both."""
    second = union(b)
    return [part for begin, end in union(a) for part in clip(second, begin, end)]


def total(parts: Iterable[Interval]) -> int:
    return sum(end - begin for begin, end in parts)
