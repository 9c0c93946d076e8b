"""A page's panels: the focused one, the zoomed one, and a jump's letters over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from pardbg.render.draw.cells import Line, Picture, overlay
from pardbg.render.draw.regions import LETTER, Region, framed, lettered, regions, zoomed

_PANEL_LETTERS: Final = "asdfghjkl"
_ROW_LETTERS: Final = "qwertyuiopzxcvbnm"


class Panels:
    """Focus, zoom and jump of one page."""

    def __init__(self) -> None:
        self.jumping = False
        """Whether letters are shown over panels and rows."""
        self.targets: dict[str, str | int] = {}
        """Letter -> its target: a panel by title, or a row."""
        self._all: list[Region] = []
        self._focused = ""
        self._zoomed = ""
        self._size: tuple[int, int] | None = None
        """Size of the page with the zoomed panel as large as the screen."""

    def draw(self, draw: Callable[[int, int], Picture], cells: int, rows: int) -> Picture:
        """Return the page's picture, or its zoomed panel, as long as there is such a panel."""
        found = zoomed(draw, self._zoomed, cells, rows, self._size) if self._zoomed else None
        if found is None:
            return draw(cells, rows)
        self._size = found[1]
        return found[0]

    def marked(
        self, lines: Sequence[Line], foot: Sequence[Line], rows: Mapping[int, int], cells: int
    ) -> Sequence[Line]:
        """Return the lines with borders if there is room, the focused panel's edge brighter, and
        with a jump's letters; ``rows``: row of the page -> line."""
        below = (replace(region, y=region.y + len(lines)) for region in regions(foot))
        self._all = [*regions(lines), *below]
        made = framed([*lines, *foot], self._all, self.focus, cells)
        self.targets = {}
        if self.jumping:
            for letter, region in zip(_PANEL_LETTERS, self._all, strict=False):
                self.targets[letter] = region.title
                made[region.y] = lettered(made[region.y], region, letter)
            for letter, row in zip(_ROW_LETTERS, rows, strict=False):
                self.targets[letter] = row
                made[rows[row]] = overlay(made[rows[row]], 0, letter, LETTER)
        return made

    @property
    def focus(self) -> Region | None:
        """Return the panel that has the focus; None: the page has no panels."""
        named = (panel for panel in self._all if panel.title == self._focused)
        return next(named, self._all[0] if self._all else None)

    def focus_on(self, title: str) -> None:
        self._focused = title

    def turn(self, by: int) -> bool:
        """Give the focus to the next (+1) or previous panel; return False if there is only one."""
        if self.focus is None or len(self._all) < 2:
            return False
        at = self._all.index(self.focus) + by
        self._focused = self._all[at % len(self._all)].title
        return True

    def zoom(self, on: bool) -> bool:
        """Zoom the focused panel to the whole page, or show the page again; False if nothing
        changes."""
        panel = self.focus
        if on == bool(self._zoomed) or (on and panel is None):
            return False
        self._zoomed = panel.title if on and panel is not None else ""
        self._size = None
        return True
