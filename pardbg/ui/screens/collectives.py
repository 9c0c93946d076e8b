"""4 Collectives."""

from __future__ import annotations

from pardbg.render.draw.cells import Picture
from pardbg.render.pages.collectives import (
    CollectivesPageState,
    RowKey,
    collectives,
    detail,
    key_of,
    rows_of,
)
from pardbg.ui.engine.feed import Frame
from pardbg.ui.screens.base import Page, Shared


class CollectivesPage(Page):
    """Operations matched over their ranks; follows the newest until a row is selected."""

    name_ = "collectives"

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._key: RowKey | None = None
        self._p2p = self._by_wait = False

    @property
    def _look(self) -> CollectivesPageState:
        return CollectivesPageState(self._key, self.contains, self._p2p, self._by_wait)

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        return collectives(frame.snapshot, cells, rows, self._look)

    def move(self, by: int) -> None:
        frame = self.shared.frame
        if frame is None:
            return
        keys = [key_of(row) for row in rows_of(frame.snapshot, self._look)]
        if keys:
            first = 0 if self._by_wait else len(keys) - 1
            at = keys.index(self._key) if self._key in keys else first
            at = min(max(at + by, 0), len(keys) - 1)
            self._key = keys[at]
        self.redraw()

    def choose(self, index: int) -> None:
        frame = self.shared.frame
        rows = rows_of(frame.snapshot, self._look) if frame else ()
        if 0 <= index < len(rows):
            self._key = key_of(rows[index])
        self.redraw()

    def follow(self) -> None:
        self._key = None
        super().follow()

    def grid(self) -> bool:
        """By time, or what cost most waiting first."""
        self._by_wait, self._key = not self._by_wait, None
        self.redraw()
        return True

    def other(self) -> bool:
        self._p2p = not self._p2p
        self._key = None
        self.redraw()
        return True

    def detail(self, frame: Frame, cells: int, rows: int) -> tuple[str, Picture] | None:
        listed = rows_of(frame.snapshot, self._look)
        if not listed:
            return None
        row = next((r for r in listed if key_of(r) == self._key), listed[-1])
        return "operation", detail(row, frame.snapshot, cells, rows)
