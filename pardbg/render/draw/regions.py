"""Panels of a drawn page: where each begins, found by its rule, and which cells belong to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
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
    plain,
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
_KEPT: Final = 2048
"""Maximum number of cached bordered lines: between frames most lines stay the same."""
_FRAMED: Final = (100, 24)
"""Cells and lines of a page from which on its panels have borders."""


@dataclass(frozen=True, slots=True)
class Region:
    """A panel's place among the lines of a page."""

    title: str
    x: int
    y: int
    """Line of the panel's rule."""
    cells: int
    lines: int
    """Number of lines, the rule included."""


def regions(lines: Sequence[Line]) -> list[Region]:
    """Return the panels of a page, from the top, from the left. A panel extends down to the next
    panel that begins below it, or to the end."""
    found = [(y, *head) for y, row in enumerate(lines) for head in _heads(row)]
    last = max((y for y, row in enumerate(lines) if _counts(row)), default=0) + 1
    made = []
    for y, x, cells, title in found:
        below = (b for b, bx, bcells, _ in found if b > y and bx < x + cells and x < bx + bcells)
        made.append(Region(title, x, y, cells, min(below, default=last) - y))
    return made


@lru_cache(maxsize=_KEPT)
def _counts(row: Line) -> bool:
    """Return whether a line has text, even blanks; a line with only a divider, which may continue
    beside a panel's lower edge, does not count."""
    return any(run.text for run in row) and plain(row).strip() != "│"


@lru_cache(maxsize=_KEPT)
def _heads(row: Line) -> tuple[tuple[int, int, str], ...]:
    """Return (column, cells, title) of each rule in a line."""
    at, found = 0, []
    for index, run in enumerate(row):
        following = row[index + 1 : index + 2]
        if run.style.startswith("title") and following and following[0].style.startswith(_RULE):
            note = takewhile(lambda run: run.style not in ("", "title"), row[index + 2 :])
            cells = width(run.text) + line_width((following[0], *note))
            found.append((at, cells, run.text.strip()))
        at += width(run.text)
    return tuple(found)


def framed(
    lines: Sequence[Line], all_: Sequence[Region], focus: Region | None, cells: int
) -> list[Line]:
    """Return the lines with a thin border around each panel with free cells around it; the focused
    panel's border is brighter."""
    made = list(lines)
    if cells >= _FRAMED[0] and len(lines) >= _FRAMED[1]:
        page = _Page(lines, cells)
        for region in all_:
            inside = range(region.y + 1, page.end_of(region))
            if region.lines > 1 and not any(map(page.is_uneven, (region.y, *inside))):
                _frame(page, region, inside[-1], ON if region == focus else "")
        made = page.made()
    if focus is not None:
        made[focus.y] = focused(made[focus.y], focus)
    return made


class _Page:
    """Lines of a page with borders in them: whole rows are taken apart only at the upper and lower
    edges of panels."""

    def __init__(self, lines: Sequence[Line], cells: int) -> None:
        self._lines, self._cells = lines, cells
        self._rows: dict[int, Row] = {}
        self._sides: dict[int, list[tuple[int, str]]] = defaultdict(list)

    def row(self, y: int) -> Row:
        """Return a line as cells to paint on."""
        if y not in self._rows:
            self._rows[y] = as_row(self._lines[y], self._cells)
        return self._rows[y]

    def end_of(self, region: Region) -> int:
        """Return the end of a panel's lines, including the line below the panel if it is blank."""
        end = region.y + region.lines
        blank = (
            end < len(self._lines)
            and not plain(_between(self._lines[end], region.x, region.x + region.cells)).strip()
        )
        return end + 1 if blank else end

    def is_uneven(self, y: int) -> bool:
        return _is_uneven(self._lines[y])

    def is_free(self, y: int, left: int, right: int) -> bool:
        return _is_free(self._lines[y], left, right)

    def put_side(self, y: int, x: int, on: str) -> None:
        """Draw a piece of a vertical edge, keeping the cell's background."""
        self._sides[y].append((x, on))

    def made(self) -> list[Line]:
        """Return all lines with what was drawn."""
        return [self._made(y, line_) for y, line_ in enumerate(self._lines)]

    def _made(self, y: int, found: Line) -> Line:
        found = self._rows[y].line() if y in self._rows else found
        sides = tuple(sorted(self._sides.get(y, ())))
        return _sided(found, sides, self._cells) if sides else found


@lru_cache(maxsize=_KEPT)
def _is_uneven(row: Line) -> bool:
    """Return whether a line's characters are not all a cell wide."""
    return any(not run.text.isascii() and width(run.text) != len(run.text) for run in row)


@lru_cache(maxsize=_KEPT)
def _is_free(row: Line, left: int, right: int) -> bool:
    """Return whether two cells of a line are blank."""
    return all(plain(_between(row, x, x + 1)) in ("", " ") for x in (left, right))


@lru_cache(maxsize=_KEPT)
def _sided(row: Line, sides: tuple[tuple[int, str], ...], cells: int) -> Line:
    """Return a line with pieces of vertical edges drawn in it."""
    parts, done = list[Line](), 0
    for x, on in sides:
        under = "".join(run.style for run in _between(row, x, x + 1))
        ground = under[len(under.partition("+")[0]) :]
        parts += [fit(_between(row, done, x), x - done), (Segment("│", _RULE + on + ground),)]
        done = x + 1
    return line(*parts, _between(row, done, cells))


def _between(runs: Line, begin: int, end: int) -> Line:
    """Return part of a line of one-cell characters."""
    at, kept = 0, []
    for run in runs:
        size = len(run.text)
        if at >= end:
            break
        if at + size > begin:
            text = run.text[max(0, begin - at) : end - at]
            kept.append(run if len(text) == size else Segment(text, run.style))
        at += size
    return tuple(kept)


def _frame(page: _Page, region: Region, bottom: int, on: str) -> None:
    """Draw a border one cell around a panel's lines, if these cells are free."""
    left, right, sides = region.x - 1, region.x + region.cells, range(region.y + 1, bottom)
    head, low = page.row(region.y), page.row(bottom)
    free = left >= 0 and right < head.size and all(
        page.is_free(y, left, right) for y in (region.y, *sides)
    )  # fmt: skip
    below = low.chars[left : right + 1]
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
    for y in sides:
        page.put_side(y, left, on)
        page.put_side(y, right, on)
    low.put(left, "╰" + "─" * (right - left - 1) + "╯", _RULE + on)


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
    page with this panel (``known``: the size found before); None if there is no such panel.

    The page is drawn larger until the panel fills the screen, and the panel is cut out of it, so
    the drawing code is the same.
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
    """Return a panel's part of a line of one-cell characters."""
    begin, end, at, kept = region.x, region.x + min(region.cells, cells), 0, []
    for run in row:
        text = run.text[max(0, begin - at) : max(0, end - at)]
        kept.append(Segment(text, run.style))
        at += width(run.text)
    return fit(line(*kept), cells)
