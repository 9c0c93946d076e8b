"""Numbers as a person reads them, for what the agent says of a hit."""

from __future__ import annotations

from typing import Final

_TIMES: Final = (("s", 1e9), ("ms", 1e6), ("us", 1e3))
_SIZES: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def duration(ns: float) -> str:
    """``312 ms``, ``1.25 s``"""
    return _in(ns, _TIMES, "ns")


def size(num_bytes: float) -> str:
    """``2.1 GiB``"""
    return _in(num_bytes, _SIZES, "B")


def times_median(ns: int, usual: tuple[int, int]) -> str:
    """``12.5 × the median 25 ms of 32``"""
    median, samples = usual
    times = ns / max(median, 1)
    shown = f"{times:.1f}" if times < 100 else f"{times:.0f}"
    return f"{shown} × the median {duration(median)} of {samples}"


def took(what: str, ns: int, usual: tuple[int, int]) -> str:
    """``2F4 took 312 ms, 12.5 × the median 25 ms of 32``"""
    return f"{what} took {duration(ns)}, {times_median(ns, usual)}"


def _in(value: float, units: tuple[tuple[str, float], ...], rest: str) -> str:
    for unit, factor in units:
        if value >= factor:
            return f"{value / factor:.3g} {unit}" if value < 1000 * factor else (
                f"{value / factor:.0f} {unit}")  # fmt: skip
    return f"{value:.0f} {rest}"
