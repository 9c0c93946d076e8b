"""Tables of bars: rows with a label, a bar and figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pardbg.render.draw.cells import (
    Line,
    Segment,
    fit,
    left,
    line,
    right,
    selected,
    width,
)
from pardbg.render.draw.sparks import thin


@dataclass(frozen=True, slots=True)
class Bar:
    """One labelled bar."""

    label: str
    fraction: float
    figure: str
    style: str


def bars(rows: Sequence[Bar], cells: int) -> list[Line]:
    """One line per bar: label, bar, figure; labels and figures share a width."""
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
class Column:
    """One column of a table: heading, width, alignment and how soon it may go."""

    title: str
    size: int
    rank: int = 0
    """Columns with the highest rank go first when the terminal is narrow."""
    align: str = "left"

    def cell(self, text: str) -> str:
        return right(text, self.size) if self.align == "right" else left(text, self.size)


def choose(columns: Sequence[Column], cells: int, gap: int = 2) -> tuple[Column, ...]:
    """The columns that fit into ``cells``, dropping the least important first."""
    kept = list(columns)
    while len(kept) > 1 and sum(c.size for c in kept) + gap * (len(kept) - 1) > cells:
        least = max(kept, key=lambda c: c.rank)
        if least.rank == 0:
            break
        kept.remove(least)
    return tuple(kept)


def headings(columns: Sequence[Column]) -> Line:
    """The columns' titles over a table."""
    return line("  ", *(Segment(c.cell(c.title) + "  ", "dim") for c in columns))


def table_row(
    columns: Sequence[Column], cell: Callable[[Column], Line], chosen: bool, cells: int
) -> Line:
    """A row under ``headings``; across the whole width where it is the chosen one."""
    made = line("  ", *(line(fit(cell(c), c.size), "  ") for c in columns))
    return fit(selected(made), cells, "+sel") if chosen else made


def side_by_side(panels: Sequence[tuple[str, str, Sequence[Line]]], size: int, height: int
                 ) -> list[Line]:  # fmt: skip
    """Panels (title, note, lines) of ``size`` cells beside each other, ``height`` lines each."""
    lines = [line(*(line(" ", rule(title, size, note), " ") for title, note, _ in panels))]
    for at in range(height):
        parts = [drawn[at] if at < len(drawn) else () for _, _, drawn in panels]
        lines.append(line(*(line(" ", fit(part, size), " ") for part in parts)))
    return lines


def rule(title: str, cells: int, note: str = "") -> Line:
    """A section's heading: its name, a thin rule, a note at the right."""
    head = f"{title} " if title else ""
    tail = f" {note}" if note else ""
    dashes = max(0, cells - width(head) - width(tail))
    return line(Segment(head, "title"), Segment("─" * dashes, "rule"), Segment(tail, "dim"))
