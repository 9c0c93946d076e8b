"""Handlers of the keys about a page's panels: focus, zoom, and the letters of a jump."""

from __future__ import annotations

from typing import Final

from pardbg.ui.commands.actions import Handlers
from pardbg.ui.main.screen_port import ScreenPort

_DIGITS: Final = {str(at % 10): at - 1 for at in range(1, 11)}


class PanelActions:
    """Actions that move the focus among panels, and go to the target of a letter."""

    def __init__(self, view: ScreenPort) -> None:
        self._view = view

    def handlers(self) -> Handlers:
        """Return the handlers by action id."""
        return {
            "next_panel": lambda _: self._turn(1),
            "previous_panel": lambda _: self._turn(-1),
            "zoom_panel": lambda _: self._zoom(),
            "jump": lambda _: self._begin(),
        }

    def _turn(self, by: int) -> None:
        if self._view.page.panels.turn(by):
            self._view.page.redraw()
        else:
            self._view.say("one panel here; ctrl pgdn goes to the next page")

    def _zoom(self) -> None:
        panels = self._view.page.panels
        if not panels.zoom(True) and not panels.zoom(False):
            self._view.say("no panel to zoom here")
        self._view.page.redraw()

    def _begin(self) -> None:
        self._view.jump(True)
        if not self._view.page.panels.targets:
            self._view.jump(False)
            self._view.say("nothing to jump to here")

    def take(self, key: str) -> None:
        """Go to the target of a jump's key: panel, row or page; capital letters zoom or open."""
        view, page = self._view, self._view.page
        target = page.panels.targets.get(key.lower())
        view.jump(False)
        if key in _DIGITS:
            view.show_page(list(view.pages)[_DIGITS[key]])
        elif isinstance(target, str):
            page.panels.focus_on(target)
            if key.isupper():
                page.panels.zoom(True)
            page.redraw()
        elif target is not None:
            page.choose(target)
            if key.isupper():
                view.handlers["detail"]("")
        view.want_page()
