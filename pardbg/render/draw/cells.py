"""Lines of styled cells: the output of every drawing function, shown by every widget.

A style is a *token* (``action.F``, ``dim``, ``warn``), not a colour: the viewer's palette decides
its look, so one drawing serves dark, light and 16-colour terminals. A token may end in ``+sel``
(the row is selected). Widths are terminal cells.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple, overload

from pardbg import plain_text

SELECTED = "+sel"
PAIR = "/"
"""Separator of a style ``a/b``: ink of ``a`` on a ground in the ink of ``b``, in one cell."""
clean = plain_text.plain
"""Function that removes control sequences from a text of a job or a session."""


class Segment(NamedTuple):
    """A piece of text in one style."""

    text: str
    style: str = ""


Line = tuple[Segment, ...]


class Drawn(Sequence[Line]):
    """A sequence of ``number`` lines that are drawn when they are read: from a long list only those
    on the screen are, and the lines ``below`` the list."""

    def __init__(
        self, number: int, draw: Callable[[int], Line], below: Sequence[Line] = ()
    ) -> None:
        self._range = range(number + len(below))
        self._draw = cache(lambda at: draw(at) if at < number else below[at - number])

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, at: int) -> Line: ...
    @overload
    def __getitem__(self, at: slice) -> list[Line]: ...
    def __getitem__(self, at: int | slice) -> Line | list[Line]:
        found = self._range[at]
        return self._draw(found) if isinstance(found, int) else [self._draw(i) for i in found]


@dataclass(frozen=True, slots=True)
class Picture:
    """A screen's contents: fixed lines above and below a body that may scroll."""

    head: tuple[Line, ...] = ()
    body: Sequence[Line] = ()
    foot: tuple[Line, ...] = ()
    focus: int | None = None
    """Number of the body row that must be visible (the selected one); None: none must."""
    follow: bool = False
    """The newest line is last: keep the end in view."""
    rows: tuple[int, ...] = ()
    """Index of the thing that each body line shows (a rank, a row), for the mouse; or empty."""
    cells: int = 0
    """Width of the body if something is drawn beside it; 0: the whole width."""
    head_rows: tuple[int, ...] = ()
    """Index of the thing that each head line shows; -1: none that can be selected."""


@lru_cache(maxsize=4096)
def _char_width(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def width(text: str) -> int:
    """Return the number of cells that ``text`` takes."""
    return len(text) if text.isascii() else _wide(text)


@lru_cache(maxsize=16384)
def _wide(text: str) -> int:
    return sum(map(_char_width, text))


def clip(text: str, cells: int, end: str = "…") -> str:
    """Return ``text`` in at most ``cells`` cells; cut text ends in ``…``."""
    if width(text) <= cells:
        return text
    if cells <= len(end):
        return _take(text, max(cells, 0))
    return _take(text, cells - len(end)) + end


def _take(text: str, cells: int) -> str:
    if text.isascii():
        return text[:cells]
    used = 0
    for at, char in enumerate(text):
        used += _char_width(char)
        if used > cells:
            return text[:at]
    return text


def left(text: str, cells: int) -> str:
    """Return ``text`` in exactly ``cells`` cells, left-aligned."""
    text = clip(text, cells)
    return text + " " * (cells - width(text))


def right(text: str, cells: int) -> str:
    """Return ``text`` in exactly ``cells`` cells, right-aligned."""
    text = clip(text, cells)
    return " " * (cells - width(text)) + text


def line(*parts: Segment | str | Line) -> Line:
    """Return a line from runs, plain strings and other lines; empty runs vanish."""
    runs: list[Segment] = []
    for part in parts:
        if isinstance(part, Segment):
            runs.append(part)
        elif isinstance(part, str):
            runs.append(Segment(part))
        else:
            runs.extend(part)
    return tuple(run for run in runs if run.text)


def line_width(runs: Sequence[Segment]) -> int:
    """Return the cells that a line takes."""
    return sum(width(run.text) for run in runs)


def plain(runs: Iterable[Segment]) -> str:
    """Return the line's text alone."""
    return "".join(run.text for run in runs)


def crop(runs: Sequence[Segment], cells: int) -> Line:
    """Return the line's first ``cells`` cells, the last ``…`` if more than blanks is cut off."""
    kept: list[Segment] = []
    room = cells
    for at, run in enumerate(runs):
        size = width(run.text)
        if size <= room:
            kept.append(run)
            room -= size
            continue
        lost = run.text[len(_take(run.text, room)) :] + plain(runs[at + 1 :])
        if cells > 1 and lost.strip():
            return (*_take_runs(runs, cells - 1), Segment("…", run.style))
        return (*kept, Segment(_take(run.text, room), run.style)) if room > 0 else tuple(kept)
    return tuple(kept)


def _take_runs(runs: Sequence[Segment], room: int) -> Iterator[Segment]:
    for run in runs:
        if room <= 0:
            break
        taken = _take(run.text, room)
        room -= width(taken) if taken == run.text else room
        yield Segment(taken, run.style)


def fit(runs: Sequence[Segment], cells: int, style: str = "") -> Line:
    """Return the line in exactly ``cells`` cells."""
    size = line_width(runs)
    if size == cells:
        return tuple(runs)
    if size > cells:
        runs = crop(runs, cells)
        size = line_width(runs)
    return (*runs, Segment(" " * (cells - size), style)) if size < cells else tuple(runs)


def overlay(runs: Sequence[Segment], at: int, text: str, style: str) -> Line:
    """Return the line with ``text`` over its cells from ``at`` on; only for characters one cell
    wide."""
    row = as_row(runs, at + len(text))
    row.put(at, text, style)
    return row.line()


def as_row(runs: Sequence[Segment], least: int = 0) -> Row:
    """Return a line of one-cell characters as a row of ``least`` or more cells to paint on."""
    row, used = Row(max(line_width(runs), least)), 0
    for run in runs:
        row.put(used, run.text, run.style)
        used += len(run.text)
    return row


def spread(start: Sequence[Segment], end: Sequence[Segment], cells: int) -> Line:
    """Return ``start`` at the left and ``end`` at the right edge; the left part is cut if both do
    not fit."""
    room = cells - line_width(end)
    if room <= 0:
        return fit(end, cells)
    return (*fit(start, room), *end)


def selected(runs: Sequence[Segment]) -> Line:
    """Return the line with the style of a selected line."""
    return tuple(Segment(run.text, run.style + SELECTED) for run in runs)


def wrap(text: str, cells: int, limit: int = 99) -> list[str]:
    """Return the words of ``text`` over at most ``limit`` lines; cut text ends in ``…``."""
    lines: list[str] = []
    rest = text.split()
    while rest and len(lines) < limit:
        now = rest.pop(0)
        while rest and width(now) + 1 + width(rest[0]) <= cells:
            now += " " + rest.pop(0)
        lines.append(clip(now, cells))
    if rest and lines:
        lines[-1] = clip(lines[-1] + " …", cells)
    return lines


class Row:
    """A row of single cells that is painted on and then read as one line."""

    __slots__ = ("chars", "size", "styles")

    def __init__(self, size: int, char: str = " ", style: str = "") -> None:
        self.size = max(size, 0)
        self.chars = [char] * self.size
        self.styles = [style] * self.size

    def put(self, at: int, text: str, style: str) -> None:
        """Paint ``text`` from cell ``at`` on, clipped to the row."""
        if at < 0:
            text, at = text[-at:], 0
        end = min(at + len(text), self.size)
        if end <= at:
            return
        self.chars[at:end] = text[: end - at]
        self.styles[at:end] = [style] * (end - at)

    def fill(self, start: int, end: int, char: str, style: str) -> None:
        """Paint cells ``start`` up to ``end``."""
        start, end = max(start, 0), min(end, self.size)
        if end > start:
            self.chars[start:end] = char * (end - start)
            self.styles[start:end] = [style] * (end - start)

    def blank(self, at: int) -> bool:
        """Return whether a cell is unpainted."""
        return 0 <= at < self.size and self.chars[at] == " " and not self.styles[at]

    def line(self) -> Line:
        runs: list[Segment] = []
        start = 0
        styles, chars = self.styles, self.chars
        for at in range(1, self.size + 1):
            if at == self.size or styles[at] != styles[start]:
                runs.append(Segment("".join(chars[start:at]), styles[start]))
                start = at
        return tuple(runs)
