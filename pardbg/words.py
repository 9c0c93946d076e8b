"""Numbers and rank sets in words, as findings and details say them."""

from __future__ import annotations

from collections.abc import Iterable


def duration(ns: float) -> str:
    """``81 ms``, ``4.1 s``, ``350 µs``."""
    for limit, unit, scale in ((1e3, "ns", 1.0), (1e6, "µs", 1e3), (1e9, "ms", 1e6)):
        if abs(ns) < limit:
            return f"{_short(ns / scale)} {unit}"
    if abs(ns) < 120e9:
        return f"{_short(ns / 1e9)} s"
    return f"{ns / 60e9:.1f} min"


def size(num_bytes: float) -> str:
    """``262 kB`` (powers of ten)."""
    for limit, unit, scale in ((1e3, "B", 1.0), (1e6, "kB", 1e3), (1e9, "MB", 1e6)):
        if abs(num_bytes) < limit:
            return f"{_short(num_bytes / scale)} {unit}"
    return f"{_short(num_bytes / 1e9)} GB"


def binary_size(num_bytes: float) -> str:
    """``412 MiB`` (powers of two), as memory is given."""
    for limit, unit in ((1 << 10, "B"), (1 << 20, "KiB"), (1 << 30, "MiB")):
        if abs(num_bytes) < limit:
            return f"{_short(num_bytes * 1024 / limit)} {unit}"
    return f"{_short(num_bytes / (1 << 30))} GiB"


def _short(value: float) -> str:
    """Three digits at most, and no decimals that say nothing."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}"


def rank_set(ranks: Iterable[int]) -> str:
    """``0-2,5``."""
    parts: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def ranks_text(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0-2``."""
    known = sorted(set(ranks))
    return f"rank{'s' if len(known) != 1 else ''} {rank_set(known)}"


def waits_text(ranks: Iterable[int]) -> str:
    """The verb that follows ``ranks_text``."""
    return "wait" if len(set(ranks)) != 1 else "waits"
