"""Sets of time: sorted, disjoint (begin, end) pairs in integer ns."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[int, int]


def union(parts: Iterable[Interval], gap: int = 0) -> list[Interval]:
    """Merge intervals that overlap or are at most ``gap`` apart; empty ones are dropped."""
    found = [part for part in parts if part[1] > part[0]]
    if len(found) < 2:
        return found
    merged: list[Interval] = []
    for begin, end in sorted(found):
        if merged and begin <= merged[-1][1] + gap:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return merged


def clip(parts: Iterable[Interval], begin: int, end: int) -> list[Interval]:
    """Return the parts of the intervals within [begin, end]."""
    if begin >= end:
        return []
    return [(max(a, begin), min(b, end)) for a, b in parts if a < end and b > begin and b > a]


def subtract(parts: Iterable[Interval], holes: Iterable[Interval]) -> list[Interval]:
    """Return ``parts`` without ``holes``."""
    left: list[Interval] = []
    cuts = union(holes)
    at = 0
    for begin, end in union(parts):
        while at < len(cuts) and cuts[at][1] <= begin:
            at += 1
        here = at
        while here < len(cuts) and cuts[here][0] < end:
            if begin < cuts[here][0]:
                left.append((begin, cuts[here][0]))
            begin = cuts[here][1]
            here += 1
        if begin < end:
            left.append((begin, end))
    return left


def intersect(a: Iterable[Interval], b: Iterable[Interval]) -> list[Interval]:
    """Return the time in both sets."""
    first, second = union(a), union(b)
    found: list[Interval] = []
    i = j = 0
    while i < len(first) and j < len(second):
        begin, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if begin < end:
            found.append((begin, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return found


def total(parts: Iterable[Interval]) -> int:
    """Return the sum of the lengths; overlapping time counts twice."""
    return sum(end - begin for begin, end in parts)
