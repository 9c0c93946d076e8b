"""Small charts: sparklines, bars in eighths, stacked bars."""

from __future__ import annotations

from collections.abc import Sequence

from pardbg.render.draw.cells import Line, Row

LEVELS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉█"


def resample(values: Sequence[float], size: int) -> list[float]:
    """At most ``size`` values: the largest of each bucket, so that peaks stay."""
    total = len(values)
    if total <= size:
        return list(values)
    return [max(values[at * total // size : (at + 1) * total // size]) for at in range(size)]


def spark(
    values: Sequence[float], size: int, low: float | None = None, high: float | None = None
) -> str:
    """The last values as block characters, newest at the right, padded at the left."""
    shown = list(values)[-size:]
    if not shown:
        return " " * size
    low = min(shown) if low is None else low
    high = max(shown) if high is None else high
    span = high - low
    marks = [
        LEVELS[3] if span <= 0 else LEVELS[min(7, max(0, int((v - low) / span * 7.999)))]
        for v in shown
    ]
    return "".join(marks).rjust(size)


def bar(fraction: float, size: int) -> str:
    """A bar of ``size`` cells, filled to the eighth of a cell."""
    eighths = round(min(max(fraction, 0.0), 1.0) * size * 8)
    full, rest = divmod(eighths, 8)
    text = "█" * full + (EIGHTHS[rest] if rest else "")
    return text.ljust(size)


def thin(fraction: float, size: int) -> str:
    """A calm bar of a line's height, to half a cell; anything above nothing shows."""
    halves = min(size * 2, max(round(fraction * size * 2), 1 if fraction > 0 else 0))
    return ("━" * (halves // 2) + "╸" * (halves % 2)).ljust(size)


def shares(parts: Sequence[float], size: int) -> list[int]:
    """Whole cells per part, summing to round(sum(parts) * size): largest remainders win."""
    exact = [max(part, 0.0) * size for part in parts]
    cells = [int(value) for value in exact]
    missing = min(size, round(sum(exact))) - sum(cells)
    for at in sorted(range(len(exact)), key=lambda i: cells[i] - exact[i])[: max(missing, 0)]:
        cells[at] += 1
    return cells


def stacked(parts: Sequence[tuple[float, str, str]], size: int) -> Line:
    """Fractions of the whole as (fraction, character, style), left to right."""
    row = Row(size, "▁", "bar.rest")
    at = 0
    for (_, char, style), cells in zip(
        parts, shares([part[0] for part in parts], size), strict=True
    ):
        row.fill(at, at + cells, char, style)
        at += cells
    return row.line()
