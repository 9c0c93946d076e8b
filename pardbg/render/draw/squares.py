"""Drawing of ranks as squares, in rows: half a cell, two cells wide, or a digit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from pardbg.render.draw.cells import Line, Row

Form = Literal["wide", "half", "digit"]
"""Form of a square: two cells, half a cell, or a cell with a digit in it."""
CELLS: dict[Form, int] = {"wide": 2, "half": 1, "digit": 1}
"""Cells of a square's width."""
PER_LINE: dict[Form, int] = {"wide": 1, "half": 2, "digit": 1}
"""Rows of squares in a line."""


class Square(NamedTuple):
    """A square's style, and its level from 0 to 9 for terminals without colours; -1: not known."""

    style: str
    level: int


def squares(rows: Sequence[Sequence[Square | None]], form: Form) -> list[Line]:
    """Draw rows of squares; None is an empty place."""
    drawn: list[Line] = []
    for at in range(0, len(rows), PER_LINE[form]):
        upper = rows[at]
        lower = rows[at + 1] if form == "half" and at + 1 < len(rows) else [None] * len(upper)
        row = Row(CELLS[form] * len(upper))
        for x, (over, under) in enumerate(zip(upper, lower, strict=True)):
            if form == "half":
                row.put(x, *_half(over, under))
            elif over is not None:
                text = "██" if form != "digit" else str(over.level) if over.level >= 0 else "·"
                row.put(x * CELLS[form], text, over.style)
        drawn.append(row.line())
    return drawn


def _half(upper: Square | None, lower: Square | None) -> tuple[str, str]:
    """Return a cell's character and style for two squares: the upper one as ink, the lower one as
    background, ``upper/lower``."""
    if upper is None or lower is None:
        square = upper or lower
        return (" ", "") if square is None else ("▀" if upper is not None else "▄", square.style)
    if upper.style == lower.style:
        return "█", upper.style
    return "▀", f"{upper.style}/{lower.style}"
