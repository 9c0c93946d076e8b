"""Steps of a finding's advice, numbered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pardbg.render.draw.cells import Line, Segment, clean, line, wrap

_MOST: Final = 8
"""Lines of all steps."""


def numbered(steps: Sequence[str], cells: int) -> list[Line]:
    """Draw the steps, numbered if there are several."""
    if len(steps) < 2:
        return [line(Segment(row, "accent")) for step in steps
                for row in wrap(clean(step), cells, _MOST)]  # fmt: skip
    lines: list[Line] = []
    for number, step in enumerate(steps, 1):
        for at, row in enumerate(wrap(clean(step), cells - 3, _MOST - len(steps) + 1)):
            lead = Segment(f"{number}. " if not at else "   ", "strong")
            lines.append(line(lead, Segment(row, "accent")))
    return lines
