"""Small charts: sparklines, bars in eighths, stacked bars, line charts in braille."""

from __future__ import annotations

from collections.abc import Sequence

from pardbg.render.draw.cells import Line, Row, Segment

LEVELS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉█"
_DOTS = ((0x40, 0x80), (0x04, 0x20), (0x02, 0x10), (0x01, 0x08))


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


def column_chart(values: Sequence[float], size: int, height: int, low: float, high: float,
                 style: str) -> list[Line]:  # fmt: skip
    """Columns over ``height`` rows, newest at the right."""
    shown = list(values)[-size:]
    span = (high - low) or 1.0
    levels = [max(1, round((v - low) / span * height * 8)) for v in shown]
    lines: list[Line] = []
    for row in range(height - 1, -1, -1):
        text = "".join(
            " " if (part := min(8, max(0, level - row * 8))) == 0 else LEVELS[part - 1]
            for level in levels
        )
        lines.append((Segment(text.rjust(size), style),))
    return lines


def bounds(values: Sequence[float], share: float = 0.2) -> tuple[float, float]:
    """Least and most, but at least ``share`` of the most apart: noise must not fill a chart."""
    low, high = min(values), max(values)
    return (min(low, high - abs(high) * share), high)


def line_chart(values: Sequence[float], size: int, height: int, style: str) -> list[Line]:
    """A curve in braille dots over the whole width: 2 x 4 dots per cell."""
    if not values or size < 1 or height < 1:
        return [(Segment(" " * max(size, 0)),)] * height
    wide, tall = size * 2, height * 4
    low, high = bounds(values)
    span = (high - low) or 1.0
    cells = [[0] * size for _ in range(height)]
    before: int | None = None
    for x in range(wide):
        at = x * (len(values) - 1) / max(1, wide - 1)
        here = int(at)
        after = min(here + 1, len(values) - 1)
        value = values[here] + (values[after] - values[here]) * (at - here)
        y = round((value - low) / span * (tall - 1))
        for dot in _stroke(before, y):
            cells[height - 1 - dot // 4][x // 2] |= _DOTS[dot % 4][x % 2]
        before = y
    return [
        (Segment("".join(chr(0x2800 + dots) if dots else " " for dots in row), style),)
        for row in cells
    ]


def _stroke(before: int | None, now: int) -> range:
    """The dots between two neighbouring heights, so that steep curves stay connected."""
    if before is None or before == now:
        return range(now, now + 1)
    return range(before + 1, now + 1) if now > before else range(now, before)
