"""A widget of drawn lines, by Textual's line API: a line is painted again only when it changed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from pardbg.plain_text import plain
from pardbg.render.draw.cells import Line, fit
from pardbg.ui.palette import palette_of, style


class Lines(Widget):
    """Shows lines as they are given, one terminal row each."""

    def __init__(self, *, id: str | None = None, ground: str = "") -> None:
        super().__init__(id=id)
        self._ground = ground
        self._lines: tuple[Line, ...] = ()
        self._strips: dict[tuple[Line, int, str], Strip] = {}

    @property
    def shown(self) -> tuple[Line, ...]:
        """Return the lines on screen, for tests and the mouse."""
        return self._lines

    def show(self, lines: Sequence[Line]) -> None:
        """Replace the lines; only rows that differ are painted."""
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
        if rows:
            self.refresh(*rows)

    def render_line(self, y: int) -> Strip:
        """One row as a strip, cached by its content: nothing is ever invalidated by hand."""
        line = self._lines[y] if y < len(self._lines) else ()
        width = self.size.width
        palette = palette_of(self.app.theme)
        key = (line, width, palette)
        strip = self._strips.get(key)
        if strip is None:
            if len(self._strips) > 512:
                self._strips.clear()
            base = self.rich_style
            segments = [
                Segment(plain(run.text), base + style(palette, run.style))
                for run in fit(line, width, self._ground)
            ]
            strip = self._strips[key] = Strip(segments, width)
        return strip


class ClickedLines(Lines):
    """Lines that say where they were clicked."""

    class Clicked(Message):
        def __init__(self, x: int, y: int) -> None:
            super().__init__()
            self.x, self.y = x, y

    def on_click(self, event: events.Click) -> None:
        self.post_message(self.Clicked(event.x, event.y))
