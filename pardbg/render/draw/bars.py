"""Bars, sparklines, and tables of rows with a label, a bar and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from pardbg.render.draw.cells import Line, Segment, clip, fit, left, line, right, selected, width

R = TypeVar("R")
"""A table's row."""
LEVELS = "▁▂▃▄▅▆▇█"
GAP: Final = 2
"""Cells between two panels: the border of each."""


def resample(values: Sequence[float], size: int) -> list[float]:
    """Return at most ``size`` values, the largest of each bucket, so that peaks stay."""
    total = len(values)
    if total <= size:
        return list(values)
    return [max(values[at * total // size : (at + 1) * total // size]) for at in range(size)]


def spark(
    values: Sequence[float], size: int, low: float | None = None, high: float | None = None
) -> str:
    """Return the last values as block characters, newest at the right, padded at the left."""
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


_DOTS: Final = ((0x40, 0x80), (0x04, 0x20), (0x02, 0x10), (0x01, 0x08))
"""Braille dots of a cell's left and right column, lowest first."""


def dots(values: Sequence[float], size: int, low: float, high: float, fill: bool = False) -> str:
    """Return the last values as a braille line, two per cell; ``fill``: as columns, which leave
    the topmost dots free. Blocks of rows that touch merge."""
    shown, span = list(values)[-2 * size :], max(high - low, 1e-9)
    if fill:
        tall = [math.ceil((value - low) / span * 3) for value in shown]
        marks = [range(min(3, max(0, number))) for number in tall]
    else:
        levels = (min(3, max(0, int((value - low) / span * 3.999))) for value in shown)
        marks = [range(level, level + 1) for level in levels]
    pairs = (marks[at : at + 2] for at in range(0, len(marks), 2))
    cells = (sum(_DOTS[at][side] for side, of in enumerate(p) for at in of) for p in pairs)
    return "".join(chr(0x2800 + cell) for cell in cells).rjust(size)


def thin(fraction: float, size: int) -> str:
    """Return a thin bar, to half a cell; any positive value is visible."""
    halves = min(size * 2, max(round(fraction * size * 2), 1 if fraction > 0 else 0))
    return ("━" * (halves // 2) + "╸" * (halves % 2)).ljust(size)


def shares(parts: Sequence[float], size: int) -> list[int]:
    """Return whole cells per part, summing to round(sum(parts) * size), by largest remainders."""
    exact = [max(part, 0.0) * size for part in parts]
    cells = [int(value) for value in exact]
    missing = min(size, round(sum(exact))) - sum(cells)
    for at in sorted(range(len(exact)), key=lambda i: cells[i] - exact[i])[: max(missing, 0)]:
        cells[at] += 1
    return cells


def stacked(parts: Sequence[tuple[float, str, str]], size: int) -> Line:
    """Draw fractions of the whole, given as (fraction, character, style), left to right."""
    cells = shares([part[0] for part in parts], size)
    filled = [Segment(char * n, style) for (_, char, style), n in zip(parts, cells, strict=True)]
    return line(*filled, Segment("▁" * (size - sum(cells)), "bar.rest"))


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar with its label and figure."""

    label: str
    fraction: float
    figure: str
    style: str


def bars(rows: Sequence[Bar], cells: int) -> list[Line]:
    """Return one line per bar: label, bar, figure; labels and figures share a width."""
    if not rows:
        return []
    labels = max(width(row.label) for row in rows)
    figures = max(width(row.figure) for row in rows)
    room = max(4, cells - labels - figures - 3)
    return [
        line(
            Segment(left(row.label, labels), "dim"),
            " ",
            Segment(thin(row.fraction, room), row.style),
            "  ",
            Segment(right(row.figure, figures)),
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """A column of a table: heading, width, alignment, priority, and the cells' contents."""

    title: str
    size: int
    of: Callable[[R], tuple[str, str]] | None = None
    """Function from a row to its text and style."""
    draws: Callable[[R, int], Line] | None = None
    """Function that draws a row's cell at a given width, instead of a text."""
    rank: int = 0
    """Columns with the highest rank go first when the terminal is narrow."""
    align: str = "left"
    wish: int = 0
    """Width at which no cell of the column would be cut."""
    heads: Callable[[int], Line] | None = None
    """Function that draws the heading at a given width, instead of the title."""

    def cell(self, text: str) -> str:
        return right(text, self.size) if self.align == "right" else left(text, self.size)

    def line(self, row: R) -> Line:
        """Return a row's cell in this column."""
        if self.draws is not None:
            return fit(self.draws(row, self.size), self.size)
        text, style = self.of(row) if self.of is not None else ("", "")
        return fit((Segment(self.cell(text), style),), self.size)


def choose(columns: Sequence[Column[R]], cells: int, gap: int = 2) -> tuple[Column[R], ...]:
    """Return the columns that fit into ``cells``, dropping the least important first; those with a
    ``wish`` share the rest."""
    kept = list(columns)
    while len(kept) > 1 and sum(c.size for c in kept) + gap * (len(kept) - 1) > cells:
        least = max(kept, key=lambda c: c.rank)
        if least.rank == 0:
            break
        kept.remove(least)
    spare = cells - sum(c.size for c in kept) - gap * (len(kept) - 1)
    for at, column in enumerate(kept):
        more = min(spare, column.wish - column.size)
        if more > 0:
            kept[at] = replace(column, size=column.size + more)
            spare -= more
    return tuple(kept)


def headings(columns: Sequence[Column[R]]) -> Line:
    """Return the columns' titles over a table."""
    return line("  ", *(
        line(fit(c.heads(c.size), c.size), "  ") if c.heads is not None
        else Segment(c.cell(c.title) + "  ", "dim")
        for c in columns
    ))  # fmt: skip


def table_row(columns: Sequence[Column[R]], row: R, cells: int, chosen: bool = False) -> Line:
    """Return a row under ``headings``; a selected row is marked over the whole width."""
    made = line("  ", *(line(column.line(row), "  ") for column in columns))
    return fit(selected(made), cells, "+sel") if chosen else made


def facts(rows: Iterable[tuple[str, str]], size: int = 16) -> list[Line]:
    """Return lines of names and values."""
    return [line(Segment("  " + left(name, size), "dim"), Segment(text)) for name, text in rows]


def inspected(head: Sequence[Segment], tail: Sequence[Segment], cells: int) -> list[Line]:
    """Draw the facts of the selected box in two lines, one below the other."""
    return [
        fit((Segment("  ┌ ", "accent"), *head), cells),
        fit((Segment("  └ ", "accent"), *tail), cells),
    ]


def keys(items: Iterable[tuple[str, str, str]], cells: int) -> Line:
    """Return the first marks (text, style) with their meanings, as many as fit."""
    parts: list[Segment] = []
    used = 0
    for mark, style, word in items:
        used += width(mark) + 1 + width(word)
        if used > cells:
            break
        parts += [Segment(mark, style), Segment(f" {word}  ", "dim")]
        used += 2
    return tuple(parts)


def abreast(parts: Sequence[tuple[Sequence[Line], int]], indent: int = 1) -> list[Line]:
    """Draw blocks (lines, cells) beside each other, GAP cells between them."""
    rows = []
    for at in range(max((len(lines) for lines, _ in parts), default=0)):
        blocks = [fit(lines[at] if at < len(lines) else (), room) for lines, room in parts]
        gaps = [" " * indent, *[" " * GAP] * (len(blocks) - 1)]
        rows.append(line(*(part for pair in zip(gaps, blocks, strict=True) for part in pair)))
    return rows


def panel_widths(cells: int, number: int) -> list[int]:
    """Share a page's width among panels abreast; the outer borders are at the page's edges."""
    whole, more = divmod(cells - 2 - GAP * (number - 1), number)
    return [whole + (at < more) for at in range(number)]


def rule(title: str, cells: int, note: str = "") -> Line:
    """Return a section's heading: its title, a thin rule, a note at the right."""
    head = f"{title} " if title else ""
    room = cells - width(head) - 3
    tail = f" {clip(note, room)}" if note and room >= min(width(note), 8) else ""
    dashes = max(0, cells - width(head) - width(tail))
    return line(Segment(head, "title"), Segment("─" * dashes, "rule"), Segment(tail, "dim"))
