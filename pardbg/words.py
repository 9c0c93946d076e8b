"""Numbers as people read and write them: durations, sizes, rates, shares, counts, rank sets.

The one place that formats and parses them, so that a screen, the report, ``ctl``, a finding and an
error say the same thing in the same words: ``350 µs``, ``23.1 ms``, ``2 m 10 s``, ``1.5 MiB`` of
memory, ``262 kB`` of traffic, ``31.2%``, ``ranks 0–3,7``. Three significant digits, zeros kept.
``agent/pardbg_agent/words.py`` has what a rank needs itself; one test covers both.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from typing import Final

from pardbg_agent import words as agent
from pardbg_agent.words import LARGEST as LARGEST
from pardbg_agent.words import MAX_TERMS as MAX_TERMS
from pardbg_agent.words import message as message
from pardbg_agent.words import rank_set as rank_set
from pardbg_agent.words import ranks_text as ranks_text
from pardbg_agent.words import scaled, short
from pardbg_agent.words import whole as whole

UNKNOWN: Final = "–"
"""Shown where a value is not known."""
MINUS: Final = "−"
TIME_UNITS: Final = {
    "ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9, "h": 3600e9,
}  # fmt: skip
"""ns per unit."""
SIZE_UNITS: Final = {
    "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40,
}  # fmt: skip
"""Bytes per unit."""
LONGEST_NS: Final = 1 << 60
MAX_TEXT: Final = 40
"""Maximum characters of a text that is read as one number."""
WHY_SILENT: Final = (
    "the network between here and there, the relay or the node; ranks are shown as they were"
)
"""Causes for the silence of a node."""
_DECIMAL: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DURATION: Final = re.compile(
    r"(?:(\d+)h)?(?:(\d+)m(?![sui]))?(?:(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|min|h|m)?)?", re.ASCII
)
_VIEWER: Final = re.compile(r"view-([\w.-]+)@([\w:]*)-[0-9a-f]{12}", re.ASCII)
"""User and terminal of a viewer; no terminal: a script."""
_SIZE: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([kmgt]?i?)b?", re.ASCII)


def duration(ns: float | None) -> str:
    """Return a time in ns as ``350 µs``, ``23.1 ms``, ``1.2 s``, ``2 m 10 s`` or ``2 h 5 m``."""
    if ns is None:
        return UNKNOWN
    if not math.isfinite(ns):
        return number(ns)
    if ns < 0:
        return MINUS + duration(-ns)
    return agent.duration(ns)


def at_most(ns: float | None, most_ns: float | None) -> str:
    """Return a time in ns, or ``≤ 75 ms`` if only an upper bound is known."""
    return duration(ns) if most_ns is None else f"≤ {duration(most_ns)}"


def viewer(name: str) -> str:
    """Return ``ada on pts/3`` for a viewer's name; for a name without a user its begin."""
    whose = _VIEWER.fullmatch(name)
    if whose is not None:
        return f"{whose[1]} on {whose[2].replace(':', '/')}" if whose[2] else f"{whose[1]}'s script"
    return name[:9] if name.startswith("view-") else name


def countdown(ns: float) -> str:
    """Return the rest of a time limit in whole seconds, rounded up: ``9 s``, ``4 m 59 s``."""
    return duration(max(0, -(-int(ns) // 1_000_000_000)) * 1e9) if ns > 0 else "0 s"


def offset(ns: float, resolution_ns: float = 1e6, most_ns: float = 0) -> str:
    """Return a time on a ruler, as fine as its ticks need: ``218 ms``, ``1.25 s``, ``2 m 3.5 s``.
    ``most_ns``: the largest time on the ruler; all times have the unit of this one."""
    digits = next((d for d in range(9) if resolution_ns >= 10 ** (9 - d)), 9)
    if resolution_ns < 1e6 and abs(ns) < 1e6:
        return duration(ns)
    of_ms = max(0, digits - 3)
    if round(max(ns, most_ns) / 1e6, of_ms) < 1000:
        return f"{ns / 1e6:.{of_ms}f} ms"
    total = ns / 1e9
    if round(total, digits) < 100:
        return f"{total:.{digits}f} s"
    minutes, seconds = divmod(round(total, digits), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:.0f} h " * (hours > 0) + f"{minutes:.0f} m {seconds:.{digits}f} s"


def stamp(ns: float) -> str:
    """Return a time since the job's start for a column of 9 cells: ``81.54 s``, ``17 h 14 m``."""
    return offset(ns, 1e7) if ns < 99.995e9 else duration(ns)


def clock(wall_ns: int) -> str:
    """Return the local time of day, ``18:22:07``."""
    return time.strftime("%H:%M:%S", time.localtime(wall_ns / 1e9))


def binary_size(num_bytes: float | None) -> str:
    """Return an amount of memory or disk in binary units, ``412 MiB``."""
    return _scaled(num_bytes, 1024, _BINARY)


def size(num_bytes: float | None) -> str:
    """Return an amount of traffic in decimal units, as bandwidth is given: ``262 kB``."""
    return _scaled(num_bytes, 1000, _DECIMAL)


def fine_size(num_bytes: float) -> str:
    """Return an amount of traffic with four digits, to be compared with a formula: ``1.747 MB``."""
    at = 0
    while num_bytes >= 999.95 and at < len(_DECIMAL) - 1:
        num_bytes, at = num_bytes / 1000, at + 1
    digits = 0 if not at else 3 if num_bytes < 9.9995 else 2 if num_bytes < 99.995 else 1
    return f"{num_bytes:.{digits}f} {_DECIMAL[at]}"


def sizes(amounts: Iterable[int]) -> dict[int, str]:
    """Return each amount as `size` does; to the byte if two would have the same text."""
    said = {amount: size(amount) for amount in amounts}
    if len({f"{amount:.2e}" for amount in said}) == len(said):
        return said
    return {amount: f"{count(amount)} B" for amount in said}


def rate(bytes_per_s: float | None) -> str:
    """Return ``12.4 MB/s``."""
    return UNKNOWN if bytes_per_s is None else size(bytes_per_s) + "/s"


def busbw(gbps: float | None) -> str:
    """Return a bandwidth given in GB/s as ``1.9 GB/s`` or ``41 MB/s``."""
    return rate(None if gbps is None else gbps * 1e9)


def percent(fraction: float | None, digits: int = 1) -> str:
    """Return a fraction as ``31.2%``."""
    if fraction is None or not math.isfinite(fraction):
        return number(fraction)
    return agent.percent(fraction, digits).replace("-", MINUS)


def percent_rest(whole: float | None, part: float | None, digits: int = 1) -> str:
    """Return a fraction without one of its parts, so that the rounded figures add up."""
    if whole is None or part is None:
        return UNKNOWN
    return percent((round(whole * 100, digits) - round(part * 100, digits)) / 100, digits)


def change(fraction: float, digits: int = 1, unit: str = "%") -> str:
    """Return a relative change with its sign: ``+10.4%``, ``−3.0%``."""
    return f"{fraction * 100:+.{digits}f}{unit}".replace("-", MINUS)


def number(value: float | None) -> str:
    """Return a loss or a learning rate with four significant digits; ``NaN``, ``inf``."""
    if value is None:
        return UNKNOWN
    return "NaN" if math.isnan(value) else f"{value:.4g}".replace("-inf", MINUS + "inf")


def count(value: int) -> str:
    """Return an exact number of things, ``12,345``."""
    return f"{value:,}"


def short_count(value: int) -> str:
    """Return a number of things for a narrow cell: ``128``, ``12.4k``, ``3.1M``."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale * 10 or (unit != "k" and value >= scale):
            return short(value / scale) + unit
    return str(value)


def plural(value: int, thing: str) -> str:
    """Return ``1 rank``, ``4 ranks``."""
    return f"{count(value)} {thing}{'' if value == 1 else 's'}"


def agreed(said: str, ranks: Iterable[int]) -> str:
    """Return a predicate on one rank (``is in forward``, ``its loader takes 3 ms``) in the form
    that follows ``ranks_text`` of these ranks (``are in forward``, ``their loader takes 3 ms``)."""
    if len(set(ranks)) == 1:
        return said
    first, space, rest = said.partition(" ")
    if first == "it" and space:
        return f"they {agreed(rest, ())}"
    return _OF_SEVERAL.get(first, first.removesuffix("s")) + space + rest


_OF_SEVERAL: Final = {
    "is": "are", "has": "have", "was": "were", "does": "do", "its": "their", "it": "them",
}  # fmt: skip


def waits_text(ranks: Iterable[int]) -> str:
    """Return the verb that follows ``ranks_text``."""
    return agreed("waits", ranks)


def hosts_text(num_hosts: int, nodes: Iterable[int | None]) -> str:
    """Return ``2 hosts``; where several launchers share a host, ``2 nodes on 1 host``: a machine
    is not counted twice, nor is torchrun's count of nodes lost."""
    known, hosts = len({*nodes} - {None}), plural(num_hosts, "host")
    return f"{plural(known, 'node')} on {hosts}" if known > num_hosts else hosts


def silent_nodes(nodes: Iterable[int], ranks: Iterable[int]) -> str:
    """Return the text of a terminal and a finding for nodes that are silent."""
    numbers, known = set(nodes), set(ranks)
    of = f"; {ranks_text(known)}" if known else ""
    which = f"{plural(len(numbers), 'node')} ({rank_set(numbers, most=MAX_TERMS)}{of})"
    return f"{which} {agreed('is', numbers)} silent: {WHY_SILENT}"


def rank_range(text: str) -> range | None:
    """Return the ranks of ``3`` or ``0-3`` (``0–3``); None for any other text."""
    first, dash, last = text.replace("–", "-").partition("-")
    low = whole(first.strip(), 999_999)
    high = whole(last.strip(), 999_999) if dash else low
    if low is None or high is None or high < low:
        return None
    return range(low, high + 1)


def rank_named(text: str) -> int | None:
    """Return the rank of ``3`` or ``r3``."""
    return whole(text.lower().removeprefix("r"))


def parse_duration(text: str) -> int:
    """Return ns of ``12.5`` (seconds), ``2m10s``, ``1h2m``, ``300ms``, ``40 µs`` or ``5min``.
    Raises ValueError, one line with the accepted forms.
    """
    plain = text.strip().lower().replace(" ", "").replace("μ", "µ")
    match = _DURATION.fullmatch(plain) if len(plain) <= MAX_TEXT else None
    if match is None or not any(match.groups()):
        raise ValueError(f"{text[:MAX_TEXT]!r} is not a duration: write 90s, 2m10s, 300ms or 40us")
    hours, minutes, value, unit = match.groups()
    scale = TIME_UNITS["min" if unit == "m" else unit or "s"]
    ns = (int(hours or 0) * 3600 + int(minutes or 0) * 60) * 10**9
    ns += round(float(value or 0) * scale)
    if ns > LONGEST_NS:
        raise ValueError(f"{text.strip()} is longer than any run")
    return ns


def parse_size(text: str) -> int:
    """Return the bytes of ``500MB``, ``2 GiB``, ``64k`` or ``4096``. Raises ValueError."""
    plain = text.strip().lower().replace(" ", "")
    match = _SIZE.fullmatch(plain) if len(plain) <= MAX_TEXT else None
    if match is None or match[2] == "i":
        raise ValueError(f"{text[:MAX_TEXT]!r} is not a size: write 500MB or 2GiB")
    power = " kmgt".index(match[2][:1] or " ")
    base = 1024.0 if match[2].endswith("i") else 1000.0
    return round(float(match[1]) * base**power)


def _scaled(value: float | None, base: float, units: tuple[str, ...]) -> str:
    if value is None or not math.isfinite(value):
        return number(value)
    if value < 0:
        return MINUS + _scaled(-value, base, units)
    return scaled(value, base, units)
