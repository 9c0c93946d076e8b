"""Steps of a finding's advice, numbered."""

from __future__ import annotations

import re
from typing import Final

from pardbg.render.draw.cells import Line, Segment, clean, line, wrap

_MOST: Final = 8
"""Lines of all steps."""
_DO: Final = (
    "add|ask|average|await|broadcast|call|check|clear|combine|compare|compute|continue|destroy|do|"
    "end|gather|give|have|hold|ignore|issue|keep|launch|leave|let|look|lower|make|mend|move|"
    "multiply|please|put|read|record|run|see|send|set|shard|skip|start|sum|take|use|wait|weigh|wrap"
)
_BEGINS: Final = re.compile(
    rf"(or )?(`(?!pardbg`)|({_DO}|else|if|then|until|while|more|smaller|larger|fewer)\b)", re.I
)
"""The begin of a sentence that says what to do; others say why, and belong to the one before."""
_PARTS: Final = re.compile(rf"(?<=[.?!]) (?=[A-Z`])|[;,] (?=or (?:{_DO})\b)")


def _parts(advice: str) -> list[str]:
    """Return the sentences and alternatives, none of them cut within parentheses."""
    found, begin = [], 0
    for cut in _PARTS.finditer(advice):
        part = advice[begin : cut.start()]
        if part.count("(") == part.count(")"):
            found.append(part)
            begin = cut.end()
    return [*found, advice[begin:]]


def steps_of(advice: str) -> list[str]:
    """Return the things to do, each with the sentences that explain it."""
    steps: list[str] = []
    told = False
    for part in _parts(advice):
        does = _BEGINS.match(part) is not None
        part = part[:1].upper() + part[1:] if part.startswith("or ") else part
        part += "" if part.endswith((".", "?", "!")) or part == advice else "."
        if steps and not (does and told):
            steps[-1] = f"{steps[-1]} {part}"
        else:
            steps.append(part)
        told = told or does or part.startswith("Or ")
    return steps


def numbered(advice: str, cells: int) -> list[Line]:
    """Draw the steps, numbered if there are several."""
    steps = [clean(step) for step in steps_of(advice)]
    if len(steps) < 2:
        return [line(Segment(row, "accent")) for row in wrap(clean(advice), cells, _MOST)]
    lines: list[Line] = []
    for number, step in enumerate(steps, 1):
        for at, row in enumerate(wrap(step, cells - 3, _MOST - len(steps) + 1)):
            lead = Segment(f"{number}. " if not at else "   ", "strong")
            lines.append(line(lead, Segment(row, "accent")))
    return lines
