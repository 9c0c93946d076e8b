"""Matrix of all_to_all traffic, with the load behind it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pardbg import words
from pardbg.analysis.answers.ranks import RankNow
from pardbg.analysis.comm.traffic import TrafficView
from pardbg.render.draw.bars import LEVELS, rule
from pardbg.render.draw.cells import Line, Segment, clean, clip, fit, left, line, right
from pardbg.words import whole

MOST_RANKS = 16
_NAME, _CELL = 10, 11


def exchanged(view: TrafficView, ranks: Sequence[int]) -> bool:
    """Return whether ranks exchanged parts with all others, which a ring cannot show."""
    if len(ranks) < 3 or not any(op == "all_to_all" for _, op, *_ in view.ops):
        return False
    return any(edge.source == "observed" for edge in view.edges)


def exchange(view: TrafficView, ranks: Sequence[int], cells: int) -> list[Line]:
    """Draw senders down, receivers across, sums at the ends; empty if the figures do not fit.
    Exchanged bytes are observed; other traffic is drawn here if neither ring nor star can show
    it."""
    if len(ranks) > MOST_RANKS or _NAME + _CELL * (len(ranks) + 1) + 4 > cells:
        return []
    source = "observed" if exchanged(view, ranks) else "modelled"
    edges = {(e.src, e.dst): e for e in view.edges if e.source == source}
    rates = any(edge.rate_bps > 0 for edge in edges.values())
    amounts = {pair: e.rate_bps if rates else float(e.bytes) for pair, e in edges.items()}
    what = f"per second, last {words.duration(view.window_ns)}" if rates else "in all"
    mean = sum(amounts.values()) / max(1, len(amounts))
    header = "".join(right(str(rank), _CELL) for rank in ranks)
    lines = [
        line(" ", rule("sent from rank to rank", cells - 2, f"{source}, {what}")),
        line(Segment(right("from│to ", _NAME), "faint"), Segment(header, "dim"),
             Segment(right("sent", _CELL), "faint")),
    ]  # fmt: skip
    for src in ranks:
        row = [_figure(amounts.get((src, dst)), src == dst, mean, rates) for dst in ranks]
        total = sum(amounts.get((src, dst), 0.0) for dst in ranks)
        name = Segment(right(f"{src} ", _NAME), "dim")
        lines.append(line(name, *row, Segment(right(_words(total, rates), _CELL), "strong")))
    received = [sum(amounts.get((src, dst), 0.0) for src in ranks) for dst in ranks]
    sums = "".join(right(_words(value, rates), _CELL) for value in received)
    name = Segment(right("received", _NAME - 1) + " ", "faint")
    return [*lines, line(name, Segment(sums, "strong"))]


def _figure(amount: float | None, own: bool, mean: float, rates: bool) -> Segment:
    """Draw a pair's figure: bright a quarter above the mean of all, dim a quarter below it."""
    if own:
        return Segment(right("╲", _CELL), "faint")
    if amount is None:
        return Segment(right("·", _CELL), "faint")
    heat = 4 if amount > 1.25 * mean else 3 if amount > 0.75 * mean else 2
    return Segment(right(_words(amount, rates), _CELL), f"heat.{heat}")


def _words(amount: float, rates: bool) -> str:
    return words.rate(amount) if rates else words.size(amount)


def loads(ranks: Sequence[RankNow], cells: int, rows: int) -> list[Line]:
    """Draw numbers that a program logged in parts of a name (``block 2 expert/0`` …), a line per
    name."""
    groups = _groups(ranks)
    if not groups or rows < 2:
        return []
    name, gap = min(24, max(len(clean(key)) for key in groups)), " " if cells >= 110 else ""
    lines = [line(" ", rule("load", cells - 2, "as the program logged it"))]
    for key, parts in list(groups.items())[: rows - 1]:
        label = Segment(left(clip(clean(key), name), name), "dim")
        lines.append(line(" ", label, *_parts(parts, gap)))
    return [fit(row, cells) for row in lines]


def _groups(ranks: Sequence[RankNow]) -> Mapping[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for rank in ranks:
        for name, value in rank.metrics:
            key, _, part = name.rpartition("/")
            number = whole(part, 99_999)
            if key and number is not None:
                found[key][number] = value
    return {key: dict(sorted(parts.items())) for key, parts in found.items() if len(parts) > 1}


def _parts(parts: Mapping[int, float], gap: str) -> list[Segment]:
    """Return ``0▅143``: number of the part, share of the largest part, value."""
    top = max(parts.values()) or 1.0
    mean = sum(parts.values()) / len(parts)
    runs = []
    for part, value in parts.items():
        level = LEVELS[max(0, min(7, round(value / top * 8) - 1))]
        style = "warn" if value > 1.5 * mean else ""
        runs += [Segment(f" {gap}{part}{gap}", "faint"), Segment(level, "spark"),
                 Segment(left(words.number(value), 4), style)]  # fmt: skip
    return runs
