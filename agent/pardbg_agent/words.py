"""Numbers as people read them, inside a rank: the subset of ``pardbg/words.py`` that its messages
need, in the same words. One test covers both."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_MOST_TERMS: Final = 8


def duration(ns: float) -> str:
    """Return a time in ns as ``312 ms``, ``1.25 s`` or ``2m10s``; ``ns`` is not negative."""
    if ns < 999.5:
        return f"{ns:.0f} ns"
    for scale, unit in ((1e3, "µs"), (1e6, "ms"), (1e9, "s")):
        if ns < 999.5 * scale and ns < 59.995e9:
            return f"{short(ns / scale)} {unit}"
    whole_s = round(ns / 1e9)
    minutes = f"{whole_s // 60}m{whole_s % 60:02d}s"
    return minutes if whole_s < 3600 else f"{whole_s // 3600}h{whole_s % 3600 // 60:02d}m"


def binary_size(num_bytes: float) -> str:
    """Return an amount of memory as ``2.1 GiB``; it is not negative."""
    if num_bytes < 1024 * 0.9995:
        return f"{num_bytes:.0f} B"
    for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), 1):
        if num_bytes < 1024 ** (power + 1) * 0.9995 or unit == "TiB":
            break
    return f"{short(num_bytes / 1024**power)} {unit}"


def short(value: float) -> str:
    """Return three significant digits at most: ``1.24``, ``12.4``, ``124``."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.{1 if value >= 9.995 else 2}f}".rstrip("0").rstrip(".")


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ``rank 3``, ``ranks 0–2,7``; of very many the first ones and how many they are."""
    known, runs = sorted(set(ranks)), list[list[int]]()
    for rank in known:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    joints = [("," if run[-1] == run[0] + 1 else "–").join(map(str, run)) for run in runs]
    more = f",… ({len(known)} in all)" if len(runs) > _MOST_TERMS else ""
    if not known:
        return "no rank"
    return f"rank{'s' * (len(known) > 1)} {','.join(joints[:_MOST_TERMS])}{more}"


def whole(text: str, largest: int = (1 << 63) - 1) -> int | None:
    """Return the number that ``text`` spells in ASCII digits; None if it is anything else."""
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else largest + 1
    return value if value <= largest else None


def times_median(ns: int, usual: tuple[int, int]) -> str:
    """Return ``12.5 × the median 25 ms of 32``; ``usual`` is the median in ns and of how many."""
    median, samples = usual
    return f"{short(ns / max(median, 1))} × the median {duration(median)} of {samples}"


def took(what: str, ns: int, usual: tuple[int, int]) -> str:
    """Return ``2F4 took 312 ms, 12.5 × the median 25 ms of 32``."""
    return f"{what} took {duration(ns)}, {times_median(ns, usual)}"
