"""Widgets of drawn lines, by Textual's line API: only changed lines are painted again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.segment import Segment as Painted
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from pardbg.plain_text import plain
from pardbg.render.draw.cells import Line, Picture, Segment, fit, line, line_width, width
from pardbg.render.frame import chrome
from pardbg.ui.palette import style


class Lines(Widget):
    """Widget that shows lines, one terminal row each."""

    def __init__(self, *, id: str | None = None, ground: str = "") -> None:
        super().__init__(id=id)
        self._ground = ground
        self._lines: tuple[Line, ...] = ()
        self._strips: dict[tuple[Line, int, str, bool, Style], Strip] = {}
        self._far = False

    @property
    def shown(self) -> tuple[Line, ...]:
        """Return the lines on screen, for tests and the mouse."""
        return self._lines

    def show(self, lines: Sequence[Line]) -> None:
        """Replace the lines; only rows that differ are painted again."""
        new, old = tuple(lines), self._lines
        if new == old:
            return
        self._lines = new
        width = self.size.width
        rows = [
            Region(0, y, width, 1)
            for y in range(min(max(len(new), len(old)), self.size.height))
            if (new[y] if y < len(new) else ()) != (old[y] if y < len(old) else ())
        ]
        if rows or not self.size:  # while it is hidden: all of it
            self.refresh(*rows)

    def dim(self, far: bool) -> None:
        """Dim all lines, or show them without dimming."""
        self._far = far
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return one row as a strip, cached by its content: nothing is ever invalidated by hand."""
        line = self._lines[y] if y < len(self._lines) else ()
        width = self.size.width
        palette = self.app.theme.removeprefix("pardbg-")
        base = self.rich_style  # after a change of theme not at once the new one's
        key = (line, width, palette, self._far, base)
        strip = self._strips.get(key)
        if strip is None:
            if len(self._strips) > 512:
                self._strips.clear()
            segments = [
                Painted(plain(run.text), base + style(palette, run.style, self._far))
                for run in fit(line, width, self._ground)
            ]
            strip = self._strips[key] = Strip(segments, width)
        return strip


class ClickedLines(Lines):
    """Lines that report clicks on them."""

    @dataclass
    class Clicked(Message):
        x: int
        y: int

    def on_click(self, event: events.Click) -> None:
        self.post_message(self.Clicked(event.x, event.y))


class Tabs(Lines):
    """The tab line; a click selects a page."""

    @dataclass
    class Chosen(Message):
        number: int

    def __init__(self, names: Sequence[chrome.Tab], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._names = tuple(names)
        self._spans: tuple[tuple[int, int], ...] = ()
        self._active = ""

    def activate(self, name: str) -> None:
        self._active = name
        self.redraw()

    def redraw(self) -> None:
        line, self._spans = chrome.tabs(self._names, self._active, self.size.width)
        self.show((line,))

    def on_resize(self, _event: events.Resize) -> None:
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        for (number, _), (start, end) in zip(self._names, self._spans, strict=True):
            if start <= event.x < end:
                self.post_message(self.Chosen(number))


_FEW_ROWS: Final = 4
"""Number of rows up to which each row is needed."""


def _beyond(above: int, below: int) -> Line:
    """Return a hint such as ``▲ 3  ▼ 992 more``."""
    text = "  ".join([f"▲ {above}"] * (above > 0) + [f"▼ {below} more"] * (below > 0))
    return line(Segment(f"  {text} ", "accent"))


class PicturePane(Lines):
    """Widget that shows a `Picture`, keeps its focus row in view and counts the rows beyond."""

    @dataclass
    class Clicked(Message):
        """Click on a body row in column ``x``; ``index`` is the picture's ``rows`` entry."""

        index: int
        x: int

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._picture = Picture()
        self._top = 0
        self._focus: int | None = None
        self._shown = 0
        """Number of body rows that fitted at the last paint."""
        self._tail = True

    @property
    def top(self) -> int:
        """Return the first body row shown."""
        return self._top

    @property
    def room(self) -> int:
        """Return the number of body rows that fit."""
        used = len(self._picture.head) + len(self._picture.foot)
        return max(1, self.size.height - used)

    def rows_in_view(self) -> list[int]:
        """Return the ``Picture.rows`` of the body lines on the screen."""
        rows = self._picture.rows[self._top : self._top + self.room]
        return [row for row in rows if row >= 0]

    def show_picture(self, picture: Picture) -> None:
        """Show a picture. Scrolls only if the focus row has moved out of view, if the room for the
        picture shrinks, or if the end is followed."""
        was_seen = self._focus is not None and self._top <= self._focus < self._top + self._shown
        self._picture, moved = picture, picture.focus != self._focus
        moved |= was_seen and self.room < self._shown
        self._focus, self._shown = picture.focus, self.room
        last = max(0, len(picture.body) - self.room)
        if picture.follow and self._tail:
            self._top = last
        elif picture.focus is not None and moved:
            margin = 1 if self.room > _FEW_ROWS else 0
            low, high = picture.focus - self.room + 1 + margin, picture.focus - margin
            if not self._top - self.room < picture.focus < self._top + 2 * self.room:
                low = high = picture.focus - self.room // 2  # far off: with what is around it
            self._top = min(max(self._top, low), max(high, 0))
        self._top = min(max(self._top, 0), last)
        self._paint()

    def scroll_rows(self, by: int) -> None:
        """Scroll the body; at the end of a followed list, follow again."""
        last = max(0, len(self._picture.body) - self.room)
        self._top = min(max(self._top + by, 0), last)
        self._tail = self._top >= last
        self._paint()

    def follow_end(self) -> None:
        """Go to the newest line of a followed list; in other pictures back to the selected row."""
        self._tail, self._focus = True, None
        if self._picture.follow:
            self.scroll_rows(len(self._picture.body))

    def _paint(self) -> None:
        picture, room = self._picture, self.room
        body = list(picture.body[self._top : self._top + room])
        hidden = len(picture.body) - self._top - len(body)
        if (hidden > 0 or self._top > 0) and body:
            at = len(body) - 1 if hidden > 0 else 0
            body[at] = self._hint(body[at], at + self._top, hidden)
        body += [()] * (room - len(body))
        self.show(self.marked([*picture.head, *body], picture.foot))

    def marked(self, lines: Sequence[Line], foot: Sequence[Line]) -> Sequence[Line]:
        """Return all lines, with marks; pages override this method."""
        return [*lines, *foot]

    def rows_shown(self) -> dict[int, int]:
        """Return the first visible line of each of ``Picture.rows`` on the screen."""
        found: dict[int, int] = {}
        head = len(self._picture.head)
        for at, row in enumerate(self._picture.rows[self._top : self._top + self.room]):
            if row >= 0:
                found.setdefault(row, head + at)
        return found

    def _hint(self, row: Line, at: int, below: int) -> Line:
        """Return the row at the edge with the number of rows beyond. A row that the hint would cut
        counts as one of those, unless the row is selected."""
        tail, cells = _beyond(self._top, below), self._picture.cells or self.size.width
        cut = width("".join(run.text for run in row).rstrip()) > cells - line_width(tail)
        if cut and at != self._picture.focus and self.room > _FEW_ROWS:
            row, tail = (), _beyond(self._top + (not below), below + (below > 0))
        return line(*fit(row, max(0, cells - line_width(tail))), *tail)

    def on_resize(self, _event: events.Resize) -> None:
        self.redraw()

    def redraw(self) -> None:
        """Draw again at the present size; pages override this method."""
        self._paint()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.scroll_rows(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.scroll_rows(-3)

    def on_click(self, event: events.Click) -> None:
        rows = self._picture.head_rows
        if event.y < len(rows) and rows[event.y] >= 0:
            self.post_message(self.Clicked(rows[event.y], event.x))
            return
        row = event.y - len(self._picture.head) + self._top
        if 0 <= event.y - len(self._picture.head) < self.room and row < len(self._picture.rows):
            self.post_message(self.Clicked(self._picture.rows[row], event.x))
