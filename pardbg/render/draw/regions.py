"""Panels of a drawn page: where each begins by its rule, and what of the page is its."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from pardbg.render.draw.cells import (
    Line,
    Picture,
    Row,
    Segment,
    as_row,
    fit,
    line,
    line_width,
    overlay,
    width,
)

ON: Final = ".on"
"""Ending of the tokens of the panel that has the focus."""
LETTER: Final = "jump"
"""The token of a jump's letters."""
_TRIES: Final = 6
_NEAR: Final = 2
"""Cells or lines that a zoomed panel may leave free."""
_RULE: Final = "rule"
_FRAMED: Final = (100, 24)
"""Cells and lines of a page from which on its panels have borders."""


@dataclass(frozen=True, slots=True)
class Region:
    """A panel's place among the lines of a page."""

    title: str
    x: int
    y: int
    """Its rule."""
    cells: int
    lines: int
    """With the rule."""


def regions(lines: Sequence[Line]) -> list[Region]:
    """Return the panels of a page, from above, from the left. A panel goes down to the next one
    that begins below it, or to the end."""
    found = [(y, *head) for y, row in enumerate(lines) for head in _heads(row)]
    last = max((y for y, row in enumerate(lines) if line_width(row)), default=0) + 1
    made = []
    for y, x, cells, title in found:
        below = (b for b, bx, bcells, _ in found if b > y and bx < x + cells and x < bx + bcells)
        made.append(Region(title, x, y, cells, min(below, default=last) - y))
    return made


def _heads(row: Line) -> Iterator[tuple[int, int, str]]:
    """Yield (column, cells, title) of each rule in a line."""
    at = 0
    for index, run in enumerate(row):
        following = row[index + 1 : index + 2]
        if run.style.startswith("title") and following and following[0].style.startswith(_RULE):
            note = takewhile(lambda run: run.style not in ("", "title"), row[index + 2 :])
            cells = width(run.text) + line_width((following[0], *note))
            yield at, cells, run.text.strip()
        at += width(run.text)


def framed(
    lines: Sequence[Line], all_: Sequence[Region], focus: Region | None, cells: int
) -> list[Line]:
    """Return the lines with a thin border around each panel that has blank cells for one; the panel
    with the focus is brighter."""
    made = list(lines)
    if cells >= _FRAMED[0] and len(lines) >= _FRAMED[1]:
        rows = [as_row(row, cells) for row in lines]
        uneven = {y for y, r in enumerate(lines) if sum(len(s.text) for s in r) != line_width(r)}
        for region in all_:
            y, end = region.y, region.y + region.lines
            below = rows[end].chars[region.x :][: region.cells] if end < len(rows) else ["x"]
            inside = range(y, end if "".join(below).strip() else end + 1)
            if region.lines > 1 and uneven.isdisjoint(inside):
                _frame(rows, region, inside[-1], ON if region == focus else "")
        made = [row.line() if y not in uneven else lines[y] for y, row in enumerate(rows)]
    if focus is not None:
        made[focus.y] = focused(made[focus.y], focus)
    return made


def _frame(rows: Sequence[Row], region: Region, bottom: int, on: str) -> None:
    """Draw a border one cell around a panel's lines, unless something else stands there."""
    left, right = region.x - 1, region.x + region.cells
    head, sides = rows[region.y], rows[region.y + 1 : bottom]
    free = left >= 0 and right < head.size and all(
        row.chars[x] == " " for row in (head, *sides) for x in (left, right)
    )  # fmt: skip
    below = rows[bottom].chars[left : right + 1]
    dashes = [x for x in range(region.x, right) if head.styles[x].startswith(_RULE)]
    if not free or "".join(below).strip() or len(dashes) < (3 if dashes[-1:] == [right - 1] else 6):
        return
    title, note = head.chars[region.x : dashes[0]], slice(dashes[-1] + 1, right)
    chars, styles = head.chars[note], head.styles[note]
    head.fill(left, right + 1, "─", _RULE + on)
    head.put(left, "╭─ ", _RULE + on)
    head.put(region.x + 2, "".join(title), "title" + on)
    if chars:
        head.put(right - 2, " ", "")
        note = slice(right - 2 - len(chars), right - 2)
        head.chars[note], head.styles[note] = chars, styles
    head.put(right, "╮", _RULE + on)
    for row in sides:
        for x in (left, right):
            row.put(x, "│", _RULE + on + row.styles[x][len(row.styles[x].partition("+")[0]) :])
    rows[bottom].put(left, "╰" + "─" * (right - left - 1) + "╯", _RULE + on)


def focused(row: Line, region: Region) -> Line:
    """Return the line of a panel's rule with its title and edge brighter."""
    made, at = [], 0
    for run in row:
        own = region.x <= at < region.x + region.cells and run.style in ("title", _RULE)
        made.append(Segment(run.text, run.style + ON) if own else run)
        at += width(run.text)
    return tuple(made)


def lettered(row: Line, region: Region, letter: str) -> Line:
    """Return the line of a panel's rule with a jump's letter before its title."""
    if as_row(row).chars[region.x] == "─":  # a border
        return overlay(row, region.x - 1, f" {letter} ", LETTER)
    made, at, due = [], 0, 0
    for run in row:
        if at == region.x:
            made.append(Segment(f" {letter} ", LETTER))
            due = 3
        cut = min(due, width(run.text)) if run.style.startswith(_RULE) else 0
        made.append(Segment(run.text[cut:], run.style))
        at, due = at + width(run.text), due - cut
    return tuple(made)


def zoomed(
    draw: Callable[[int, int], Picture], title: str, cells: int, lines: int,
    known: tuple[int, int] | None = None,
) -> tuple[Picture, tuple[int, int]] | None:  # fmt: skip
    """Return a panel of a page as large as it gets on ``cells`` x ``lines``, and the size of the
    page that has it so large (``known``: the one found before); None if there is no such panel.

    The page is drawn larger until the panel fills the screen, and the panel cut out of it: it is
    drawn by what always draws it.
    """
    size, best = known or (cells, lines), None
    for _ in range(_TRIES):
        picture = draw(*size)
        drawn = [*picture.head, *picture.body, *picture.foot]
        region = next((r for r in regions(drawn) if r.title == title), None)
        if region is None:
            break
        right, down = cells - region.cells, lines - region.lines
        if right >= 0 and down >= 0:
            grown = best is None or (region.cells, region.lines) > (best[0].cells, best[0].lines)
            best = (region, drawn, size) if best is None or grown else best
            if not grown or (right <= _NEAR and down <= _NEAR):
                break
        size = size[0] + right, size[1] + down
    if best is None:
        return None
    region, drawn, size = best
    cut = [_cut(row, region, cells) for row in drawn[region.y : region.y + region.lines]]
    return Picture(head=tuple(cut[:1]), body=tuple(cut[1:])), size


def _cut(row: Line, region: Region, cells: int) -> Line:
    """Return a panel's part of a line; of one cell per character."""
    begin, end, at, kept = region.x, region.x + min(region.cells, cells), 0, []
    for run in row:
        text = run.text[max(0, begin - at) : max(0, end - at)]
        kept.append(Segment(text, run.style))
        at += width(run.text)
    return fit(line(*kept), cells)
