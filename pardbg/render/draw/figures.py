"""Figures in words: short forms that keep their width while the value moves."""

from __future__ import annotations

import time
from collections.abc import Sequence

UNKNOWN = "–"
_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def _short(value: float) -> str:
    """Three significant digits at most: ``1.24``, ``12.4``, ``124``."""
    if value >= 99.95:
        return f"{value:.0f}"
    if value >= 9.995:
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.2f}".rstrip("0").rstrip(".")


def duration(ns: float | None) -> str:
    """``412 ms``, ``1.2 s``, ``81 µs``, ``3m12s``, ``2h05m``."""
    if ns is None:
        return UNKNOWN
    if ns < 0:
        return "−" + duration(-ns)
    if ns < 999.5:
        return f"{ns:.0f} ns"
    if ns < 999_500:
        return f"{_short(ns / 1e3)} µs"
    if ns < 999_500_000:
        return f"{_short(ns / 1e6)} ms"
    if ns < 59_995_000_000:
        return f"{_short(ns / 1e9)} s"
    seconds = round(ns / 1e9)
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"


def seconds(ns: float) -> str:
    """Whole seconds for countdowns: ``9 s``."""
    return f"{max(0, -(-int(ns) // 1_000_000_000))} s"


def offset(ns: float, resolution_ns: float = 1e6) -> str:
    """A time on a ruler: as fine as the ruler's steps need, ``218 ms``, ``1.25 s``, ``2m03.5s``."""
    if resolution_ns < 1e6:
        fine = next((d for d in range(1, 6) if resolution_ns >= 10 ** (6 - d)), 6)
        return duration(ns) if abs(ns) < 1e6 else f"{ns / 1e6:.{fine}f} ms"
    if ns < 9_999_500_000 and resolution_ns < 1e9:
        return f"{ns / 1e6:.0f} ms"
    digits = 0 if resolution_ns >= 1e9 else 1 if resolution_ns >= 1e8 else 2
    total = ns / 1e9
    if total < 60:
        return f"{total:.{digits}f} s"
    return f"{int(total) // 60}m{total % 60:0{3 + digits if digits else 2}.{digits}f}s"


def _scaled(value: float, base: float, units: tuple[str, ...]) -> str:
    at = 0
    while abs(value) >= base * 0.9995 and at < len(units) - 1:
        value /= base
        at += 1
    return f"{_short(value)} {units[at]}" if at else f"{value:.0f} {units[0]}"


def memory(num_bytes: float | None) -> str:
    """Binary units, for memory: ``412 MiB``."""
    if num_bytes is None:
        return UNKNOWN
    return "−" + memory(-num_bytes) if num_bytes < 0 else _scaled(num_bytes, 1024, _BINARY)


def size(num_bytes: float | None) -> str:
    """Decimal units, for traffic: ``262 kB``."""
    return UNKNOWN if num_bytes is None else _scaled(num_bytes, 1000, _DECIMAL)


def rate(bytes_per_s: float | None) -> str:
    """``12.4 MB/s``."""
    return UNKNOWN if bytes_per_s is None else size(bytes_per_s) + "/s"


def busbw(gbps: float | None) -> str:
    """GB/s given, the unit that reads best out: ``0.3 GB/s``, ``41 MB/s``."""
    if gbps is None:
        return UNKNOWN
    return f"{_short(gbps)} GB/s" if gbps >= 0.1 else rate(gbps * 1e9)


def percent(fraction: float | None, digits: int = 1) -> str:
    return UNKNOWN if fraction is None else f"{fraction * 100:.{digits}f}%"


def count(number: int) -> str:
    """``128``, ``12.4k``, ``3.1M``."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= scale * 10 or (unit != "k" and number >= scale):
            return _short(number / scale) + unit
    return str(number)


def number(value: float | None) -> str:
    """A loss or a learning rate: four significant digits; ``NaN`` and ``inf`` as such."""
    return UNKNOWN if value is None else "NaN" if value != value else f"{value:.4g}"


def clock(wall_ns: int) -> str:
    """Local time of day, ``18:22:07``."""
    return time.strftime("%H:%M:%S", time.localtime(wall_ns / 1e9))


def rank_set(ranks: Sequence[int]) -> str:
    """``0-3,7``."""
    parts: list[str] = []
    ordered = sorted(set(ranks))
    at = 0
    while at < len(ordered):
        end = at
        while end + 1 < len(ordered) and ordered[end + 1] == ordered[end] + 1:
            end += 1
        first, last = ordered[at], ordered[end]
        joint = "," if last == first + 1 else "-"
        parts.append(str(first) if first == last else f"{first}{joint}{last}")
        at = end + 1
    return ",".join(parts)


def plural(number: int, thing: str) -> str:
    """``1 rank``, ``4 ranks``."""
    return f"{count(number)} {thing}{'' if number == 1 else 's'}"
