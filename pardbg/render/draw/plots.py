"""Charts with axes, ticks and units, drawn by plotext and returned as lines of styled cells.

Every value is a separate point, without a line between points. A value that is not finite is drawn
as ``✗`` at the top.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, Final

from pardbg.render.draw.axis import nice_step
from pardbg.render.draw.cells import PAIR, Line, Segment, as_row, fit

Point = tuple[float, float]
DOT: Final = "●"
EVENT: Final = "┊"
"""Vertical line at a place of the horizontal axis."""
_SGR: Final = re.compile(r"\x1b\[([\d;]*)m")
_LEAST: Final = (16, 5)
"""Minimum cells and rows of a chart with axes."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points drawn in one style."""

    points: tuple[Point, ...]
    style: str
    marker: str = ""
    """Character for each point; empty: ``●`` if each point has a cell, else braille dots."""


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis: how values are written, and where the axis ends."""

    text: Callable[[float], str]
    low: float | None = None
    high: float | None = None
    log: bool = False
    whole: bool = False
    """Ticks at whole numbers only (steps, ranks)."""
    binary: bool = False
    """Ticks at powers of 1024 times 1, 2 or 5 (bytes)."""
    unit: str = ""
    """Stands before the first tick: ``step 0``."""

    def place(self, value: float) -> float:
        """Return the place of a value on the axis. (Logarithms are taken here: plotext 6.1 takes
        them of ticks and points, but not of limits.)"""
        return math.log10(value) if self.log else value


WHOLE: Final = "{:.0f}".format
STEPS: Final = Scale(WHOLE, whole=True, unit="step")
"""The axis of training steps."""
_BARE: Final = replace(STEPS, text=lambda _: "", unit="")
_STAIRS: Final = 8
"""Minimum number of steps that are drawn as a staircase: fewer steps are marks; if a step has less
than a cell, it is a dot."""
_MOST_TICKS: Final = 40
_BRAILLE, _UPPER = 0x2800, 0x1B
"""The character without dots, and the dots of a cell's upper half."""


def plot(series: Sequence[Series], cells: int, rows: int, x: Scale, y: Scale) -> list[Line]:
    """Return a chart of exactly ``rows`` lines of ``cells`` cells; empty if it is too small or has
    no point."""
    kept = tuple(curve for curve in series if curve.points)
    if cells < _LEAST[0] or rows < _LEAST[1] or not kept:
        return []
    return list(_plot(kept, cells, rows, x, y))


def by_step(
    values: Sequence[tuple[int, float]],
    cells: int,
    rows: int,
    style: str,
    text: Callable[[float], str],
    level: float | None = None,
    ahead: Sequence[tuple[int, float]] = (),
    steps: tuple[int | None, int | None] = (None, None),
    bare: bool = False,
    events: Sequence[tuple[float, str]] = (),
    beside: Sequence[tuple[int, float]] = (),
) -> list[Line]:
    """Draw a value per training step, with ``level`` (a median, a bound) as a broken line; steps
    ``ahead`` of the cursor are dim. ``steps``: first and last one of the axis, where charts share
    it; None: those of the values. ``bare``: without the axis' numbers, over another chart's.
    ``events``: (place, style) of upright lines; step 6 is from 6 to 7. ``beside``: another value
    of each step, dim: what counts is then the distance, and no ground is filled."""
    known = [step for step, _ in (*values, *ahead)]
    low: float = min(known, default=0) if steps[0] is None else steps[0]
    high: float = max(known, default=0) if steps[1] is None else steps[1]
    curves = (beside, "dim", "·"), (ahead, "faint", ""), (values, style, "")
    if len(known) >= _STAIRS and high - low < cells:
        shown = [Series(stairs(of, cells), look, "braille") for of, look, _ in curves]
        low, high = low - 0.5, high + 0.5
    else:
        shown = [Series(tuple(of), look, mark) for of, look, mark in curves]
    if level is not None and len(values) > 1:
        first, last = values[0][0], values[-1][0]
        across = tuple((first + (last - first) * at / cells, level) for at in range(cells + 1))
        shown.insert(0, Series(across, "faint", "╌"))
    inside = [(place - 0.5, look) for place, look in events if low <= place - 0.5 <= high]
    bottom, top = _limits([v for _, v in (*values, *ahead)], Scale(text)) if inside else (0.0, 0.0)
    for x, look in inside:
        up = tuple((x, bottom + (top - bottom) * at / rows) for at in range(rows + 1))
        shown.insert(0, Series(up, look, EVENT))
    axis = replace(_BARE if bare else STEPS, low=low, high=high)
    chart = tuple(plot(shown, cells, rows + bare, axis, Scale(text)))
    chart = chart if beside else _filled(chart, style)
    return list(chart[:-1] if bare else chart)


@lru_cache(maxsize=64)
def _filled(chart: tuple[Line, ...], style: str) -> tuple[Line, ...]:
    """Return the chart with the area below a braille line in ``style`` tinted, paler further down;
    never above the line, nor in columns without a line."""
    rows = [as_row(row) for row in chart]
    for x in range(max((row.size for row in rows), default=0)):
        under = False
        for y, row in enumerate(rows):
            if row.styles[x] == "rule":
                under = False
            dots = ord(row.chars[x]) - _BRAILLE if row.styles[x] == style else 0
            under |= 0 < dots < 256 and bool(dots & _UPPER)
            if under:
                row.styles[x] += f"{PAIR}fill.{style}.{3 * y // len(rows)}"
            under |= 0 < dots < 256
    return tuple(row.line() for row in rows)


def stairs(values: Sequence[tuple[int, float]], cells: int) -> tuple[Point, ...]:
    """Return the points of a staircase: a row of braille dots as wide as a step for each value."""
    dots = max(2, 4 * cells // max(_STAIRS, len(values)))
    return tuple((step + (at + 0.5) / dots - 0.5, value) for step, value in values
                 for at in range(dots if math.isfinite(value) else 1))  # fmt: skip


@lru_cache(maxsize=64)
def _plot(
    series: tuple[Series, ...], cells: int, rows: int, x: Scale, y: Scale
) -> tuple[Line, ...]:
    points = [point for curve in series for point in curve.points]
    xs = _limits([px for px, _ in points], x)
    ys = _limits([py for _, py in points], y)
    figure, styles = _figure(cells, rows), ["", "rule", "dim", "bad"]
    for curve in series:
        styles.append(curve.style)
        _draw(figure, curve, len(styles) - 1, (x, y), ys[1], cells)
    x_ticks = _ticks(xs, x, max(2, cells // 12))
    y_ticks = _ticks(ys, y, max(2, rows // 3), least=2)  # one tick is no scale
    y_ticks = _apart(y_ticks, ys, y, rows - 2)
    for name, limits, ticks, scale in (("x", xs, x_ticks, x), ("y", ys, y_ticks, y)):
        ruler = figure.ruler(name).lim(*map(scale.place, limits))
        ruler.ticks(
            [scale.place(tick) for tick in ticks], _labels(ticks, scale.text, name, scale.unit)
        )
        ruler.pixel(_pixel(2))
    return tuple(fit(line, cells) for line in _lines(figure.build().string(), styles))[:rows]


@cache
def preload() -> Any:
    """Import plotext now: it takes a quarter of a second. Returns its terminal, which must not cut
    charts to its own size."""
    import plotext

    return type(plotext.terminal)().limit(False, False)


def _figure(cells: int, rows: int) -> Any:
    """Return a new figure, so that plotext's module-wide figure is not changed."""
    terminal = preload()
    import plotext

    figure = type(plotext.figure)(terminal).plot_size(cells, rows).canvas("default")
    figure.axes(True, pixel=_pixel(1))
    figure.axes(False, axis="x", side="upper")
    figure.axes(False, axis="y", side="right")
    return figure


def _pixel(number: int) -> Any:
    """Return a colour that stands for style ``number`` until the cells are read."""
    import plotext

    return plotext.pixel((number, 0, 0))


def _draw(
    figure: Any, curve: Series, number: int, scales: tuple[Scale, Scale], top: float, cells: int
) -> None:
    import plotext

    marker = curve.marker or (DOT if len(curve.points) <= cells // 2 else "braille")
    finite = [(x, y) for x, y in curve.points if math.isfinite(y)]
    broken = [(x, top) for x, y in curve.points if not math.isfinite(y)]
    alarm = number if curve.style == "faint" else 3
    for points, char, style in ((finite, marker, number), (broken, "✗", alarm)):
        shown = [
            (scales[0].place(x), scales[1].place(y))
            for x, y in points
            if not (scales[0].log and x <= 0) and not (scales[1].log and y <= 0)
        ]
        if shown:
            xs, ys = zip(*shown, strict=True)
            figure.draw(figure.signal(xs, ys, marker=plotext.marker(char, _pixel(style))))


def _limits(values: Sequence[float], scale: Scale) -> tuple[float, float]:
    """Return first and last value of an axis, never equal."""
    finite = [v for v in values if math.isfinite(v) and (v > 0 or not scale.log)]
    low = min(finite, default=0.1) if scale.low is None else scale.low
    high = max(finite, default=1.0) if scale.high is None else scale.high
    if scale.log:
        return low / 1.5, max(high, low) * 1.5
    if high <= low:
        half = abs(low) * 0.1 or 0.5
        return low - half, low + half
    return low, high


def _ticks(limits: tuple[float, float], scale: Scale, number: int, least: int = 1) -> list[float]:
    """Return at most about ``number`` round values on an axis, more if that leaves fewer than
    ``least``."""
    low, high = limits
    if scale.log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        powers = [10.0**at for at in range(first, last + 1)]
        if sum(low <= power <= high for power in powers) < 3:
            powers = sorted(by * power for power in powers for by in (1, 2, 5))
        inside = [power for power in powers if low <= power <= high]
        return inside[:: max(1, -(-len(inside) // number))]
    step = _step((high - low) / number, scale)
    first = math.ceil(low / step - 1e-9)
    inside = [at * step for at in range(first, math.floor(high / step + 1e-9) + 1)]
    if len(inside) >= least or number > _MOST_TICKS:
        return inside
    return _ticks(limits, scale, 2 * number, least)


def _apart(ticks: list[float], limits: tuple[float, float], scale: Scale, rows: int) -> list[float]:
    """Return the ticks that are at least a row above the one below: two labels in one row would
    merge."""
    low, high = map(scale.place, limits)
    apart = (high - low) * 0.999 / max(1, rows - 1)
    kept: list[float] = []
    for tick in ticks:
        if not kept or scale.place(tick) - scale.place(kept[-1]) > apart:
            kept.append(tick)
    return kept


def _step(least: float, scale: Scale) -> float:
    """Return the smallest round distance between ticks that is at least ``least``."""
    if scale.whole:
        return float(max(1, math.ceil(nice_step(least) if least > 1 else 1)))
    unit = 1.0
    if scale.binary:
        while unit * 1024 <= least:
            unit *= 1024
    elif least < 1:
        unit = 10.0 ** math.floor(math.log10(least))
    nice = nice_step(least / unit)
    return unit * (1024 if scale.binary and nice >= 1000 else nice)


def _labels(
    ticks: Sequence[float], text: Callable[[float], str], axis: str, unit: str
) -> list[str]:
    """Return the ticks' texts, the first with the unit; a space separates the vertical axis' texts
    from its line."""
    words = [text(tick) + (" " if axis == "y" else "") for tick in ticks]
    if unit and words:
        words[0] = f"{unit} {words[0]}"
    return words


def _lines(text: str, styles: Sequence[str]) -> list[Line]:
    """Return plotext's coloured text as styled cells."""
    lines: list[Line] = []
    for row in text.split("\n"):
        runs: list[Segment] = []
        style = ""
        for at, part in enumerate(_SGR.split(row)):
            if at % 2 == 0:
                runs += [Segment(part, style)] if part else []
            elif part.startswith("38;2;"):
                number = int(part.split(";")[2])
                style = styles[number] if number < len(styles) else ""
            elif part in ("", "0"):
                style = ""
        lines.append(tuple(runs))
    return lines
