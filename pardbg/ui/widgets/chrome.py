"""Header, tabs, control line and hints: thin widgets around ``pardbg.render.frame.chrome``."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.message import Message

from pardbg.render.frame import chrome
from pardbg.ui.widgets.lines import Lines


class Tabs(Lines):
    """The tab line; a click chooses."""

    class Chosen(Message):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

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
