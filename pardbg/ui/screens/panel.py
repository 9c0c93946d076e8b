"""Panels over a page: help and details. Any of esc, q, enter or ? closes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input

from pardbg.render.draw.cells import Picture, Segment, line
from pardbg.render.draw.signs import keys_text
from pardbg.render.frame.panels import HelpRow, help_page, word_rows
from pardbg.ui.commands.actions import GLOSSARY, GROUP_TITLES, Group, for_mode, own, wrapped
from pardbg.ui.widgets.lines import PicturePane

Draw = Callable[[int, int], Picture]


class _Pane(PicturePane):
    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self._draw = draw

    def redraw(self) -> None:
        self.show_picture(self._draw(self.size.width, self.size.height))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._draw(width, viewport.height).body)


class Panel(ModalScreen[str]):
    """A framed picture that scrolls and is drawn anew with each frame. The panel's result is the
    prompt opened from it (``:`` or ``/``), or empty."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "dismiss('')", "close"),
        Binding("colon", "dismiss(':')"),
        Binding("slash", "dismiss('/')"),
        Binding("down,j", "scroll(1)"),
        Binding("up,k", "scroll(-1)"),
        Binding("pagedown,space", "scroll(10)"),
        Binding("pageup", "scroll(-10)"),
    ]

    _keys = "esc closes"

    def __init__(self, title: str, draw: Draw) -> None:
        super().__init__()
        self._title = title
        self._pane = _Pane(draw)
        self._parts: tuple[Widget, ...] = (self._pane,)

    def compose(self) -> ComposeResult:
        with Vertical(id="panel") as box:
            box.border_title, box.border_subtitle = f" {self._title} ", f" {self._keys} "
            yield from self._parts

    def redraw(self) -> None:
        self._pane.redraw()

    def action_scroll(self, by: int) -> None:
        self._pane.scroll_rows(by)


def word_panel(word: str, lines: Sequence[str]) -> Panel:
    """Return a panel about one word."""

    def draw(cells: int, _height: int) -> Picture:
        shown = wrapped(lines, max(20, cells - 1))
        styles = {0: "strong", 2: "", 4: "key"}
        return Picture(body=tuple(
            line(Segment(text, styles.get(len(text) - len(text.lstrip()), ""))) for text in shown
        ))  # fmt: skip

    panel = Panel(f"help {word}", draw)
    panel.add_class("short")
    return panel


class HelpPanel(Panel):
    """Help: all actions, the screen's own first, then words; ``/`` searches."""

    AUTO_FOCUS = ""
    """Widget with the initial focus: none, as keys scroll until a search is opened."""
    BINDINGS: ClassVar[list[BindingType]] = [Binding("slash", "search")]
    _keys = "/ searches   esc closes"

    def __init__(self, live: bool, screen: str, own_keys: Sequence[HelpRow] = ()) -> None:
        super().__init__("pardbg help", self._drawn)
        self._rows = [*own_keys, *_help_rows(live, screen)]
        self._search = Input(placeholder="search keys, commands, words", compact=True)
        self._parts = (self._search, self._pane)

    def on_mount(self) -> None:
        self._search.display = False

    def action_search(self) -> None:
        self._search.display = True
        self.set_focus(self._search)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.redraw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.set_focus(None)

    def _drawn(self, cells: int, height: int) -> Picture:
        wanted = self._search.value.lower().split()

        def fits(text: str) -> bool:
            return all(word in text.lower() for word in wanted)

        rows = [row for row in self._rows if fits(" ".join(row))]
        words = [(names, text) for names, text in GLOSSARY if fits(f"{' '.join(names)} {text}")]
        if not rows and not words:
            return Picture(body=((), line(Segment("  nothing fits", "dim"))))
        body = help_page(rows, cells, height).body if rows else ()
        return Picture(body=(*body, *word_rows(words, cells)))


def _help_rows(live: bool, screen: str) -> list[HelpRow]:
    """Return a row for every action of this mode."""
    first = [action for action, _ in own(screen, live)]
    order: list[Group] = list(GROUP_TITLES)
    others = (action for action in for_mode(live) if action not in first)
    rows = [(f"This screen: {screen.capitalize()}", action) for action in first]
    rows += [
        (GROUP_TITLES[action.group], action)
        for action in sorted(others, key=lambda action: order.index(action.group))
    ]
    return [
        (title, keys_text(action.shown), f"{action.command} {action.usage}".strip(), action.help)
        for title, action in rows
    ]
