"""Panels over a page: help and details. Any of esc, q, enter or ? closes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from pardbg.render.draw.cells import Picture, Segment, line
from pardbg.render.frame.help import help_page
from pardbg.ui.commands.actions import GROUP_TITLES, Group, for_mode
from pardbg.ui.commands.explain import wrapped
from pardbg.ui.widgets.picture import PicturePane

Draw = Callable[[int, int], Picture]


class _Pane(PicturePane):
    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self._draw = draw

    def redraw(self) -> None:
        self.show_picture(self._draw(self.size.width, self.size.height))


class Panel(ModalScreen[str]):
    """A framed picture that scrolls; it draws again with each new frame. Its result is a prompt
    that was asked for over it (``:`` or ``/``), or nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "dismiss('')", "close"),
        Binding("colon", "dismiss(':')"),
        Binding("slash", "dismiss('/')"),
        Binding("down,j", "scroll(1)"),
        Binding("up,k", "scroll(-1)"),
        Binding("pagedown,space", "scroll(10)"),
        Binding("pageup", "scroll(-10)"),
    ]

    def __init__(self, title: str, draw: Draw) -> None:
        super().__init__()
        self._title = title
        self._pane = _Pane(draw)

    def compose(self) -> ComposeResult:
        with Vertical(id="panel") as box:
            box.border_title = f" {self._title} "
            box.border_subtitle = " esc closes "
            yield self._pane

    def redraw(self) -> None:
        self._pane.redraw()

    def action_scroll(self, by: int) -> None:
        self._pane.scroll_rows(by)


def word_panel(word: str, lines: Sequence[str]) -> Panel:
    """What one word means."""

    def draw(cells: int, _height: int) -> Picture:
        shown = wrapped(lines, max(20, cells - 1))
        styles = {0: "strong", 2: "", 4: "key"}
        return Picture(body=tuple(
            line(Segment(text, styles.get(len(text) - len(text.lstrip()), ""))) for text in shown
        ))  # fmt: skip

    return Panel(f"help {word}", draw)


def help_panel(live: bool) -> Panel:
    """Every action of this mode, from the registry."""
    order: list[Group] = list(GROUP_TITLES)
    actions = sorted(for_mode(live), key=lambda action: order.index(action.group))
    rows = [
        (GROUP_TITLES[action.group], action.shown, f"{action.command} {action.usage}".strip(),
         action.help)
        for action in actions
    ]  # fmt: skip
    return Panel("pardbg help", lambda cells, height: help_page(rows, cells, height))
