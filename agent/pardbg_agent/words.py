"""Numbers as text, inside a rank: the part of ``pardbg/words.py`` that its messages need, and that
``pardbg/words.py`` has from here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

MAX_TERMS: Final = 8
"""Maximum number of terms of a rank set that a sentence spells out."""
LARGEST: Final = (1 << 63) - 1


def duration(ns: float) -> str:
    """Return a time in ns as ``312 ms``, ``1.25 s``, ``2 m 10 s`` or ``17 h 5 m``; ``ns`` is not
    negative."""
    if ns < 999.5:
        return f"{ns:.0f} ns"
    for scale, unit in ((1e3, "µs"), (1e6, "ms"), (1e9, "s")):
        if ns < 999.5 * scale and ns < 99.95e9:
            return f"{short(ns / scale)} {unit}"
    minutes, seconds = divmod(round(ns / 1e9), 60)
    if minutes < 60:
        return f"{minutes} m {seconds} s"
    return f"{minutes // 60} h {minutes % 60} m"


def binary_size(num_bytes: float) -> str:
    """Return an amount of memory, which is not negative, as ``2.1 GiB``."""
    return scaled(num_bytes, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def percent(fraction: float, digits: int = 1) -> str:
    """Return a fraction as ``31.2%``."""
    return f"{fraction * 100:.{digits}f}%"


def scaled(value: float, base: float, units: Sequence[str]) -> str:
    """Return ``value``, not negative, in the largest of ``units`` in which it is at least 1."""
    at = 0
    while value >= base * 0.9995 and at < len(units) - 1:
        value /= base
        at += 1
    return f"{short(value)} {units[at]}" if at else f"{value:.0f} {units[0]}"


def short(value: float) -> str:
    """Return three significant digits, ``1.24``, ``12.0``, ``124``; a whole number without added
    digits: ``2`` for a limit of 2 s, ``2.00`` for a measured value of about that."""
    if value >= 99.95 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.{1 if value >= 9.995 else 2}f}"


def rank_set(ranks: Iterable[int], dash: str = "–", most: int | None = None) -> str:
    """Return ``0–3,7``; ``dash="-"`` for scripts and typed text.

    ``most``: terms that are spelled out; more end in ``…`` and the number of ranks."""
    known, runs = sorted(set(ranks)), list[list[int]]()
    for rank in known:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    parts = [("," if run[-1] == run[0] + 1 else dash).join(map(str, run)) for run in runs[:most]]
    more = f",… ({len(known)} in all)" if len(parts) < len(runs) else ""
    return ",".join(parts) + more


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ``rank 3``, ``ranks 0–2``; for very many the first ones and their number."""
    known = set(ranks)
    if not known:
        return "no rank"
    return f"rank{'s' if len(known) != 1 else ''} {rank_set(known, most=MAX_TERMS)}"


def message(op: str, send: bool, peer: int, carried: str = "") -> str:
    """Return ``recv B3 from r1``, ``send to r2``; ``peer`` is -1 if it may be any rank."""
    other = "any rank" if peer < 0 else f"r{peer}"
    return " ".join(filter(None, (op, carried, "to" if send else "from", other)))


def whole(text: object, largest: int = LARGEST) -> int | None:
    """Return the number that ``text`` spells in ASCII digits; None if it is anything else.

    ``int`` alone raises where ``str.isdigit`` holds ("²") and takes ``" 1_000 "`` for a number.
    """
    if not isinstance(text, str) or not text.isascii() or not text.isdigit():
        return None
    value = int(text) if len(text) <= 20 else largest + 1
    return value if value <= largest else None


def times_median(ns: int, usual: tuple[int, int]) -> str:
    """Return ``12.5 × the median 25 ms of 32``; ``usual``: (median in ns, number of samples)."""
    median, samples = usual
    return f"{short(ns / max(median, 1))} × the median {duration(median)} of {samples}"


def took(what: str, ns: int, usual: tuple[int, int]) -> str:
    """Return ``2F4 took 312 ms, 12.5 × the median 25 ms of 32``."""
    return f"{what} took {duration(ns)}, {times_median(ns, usual)}"
