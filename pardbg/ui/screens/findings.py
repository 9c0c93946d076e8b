"""8 Findings."""

from __future__ import annotations

from pardbg.render.cells import Picture
from pardbg.render.findings import findings
from pardbg.ui.engine import Frame
from pardbg.ui.screens.base import Page, Shared


class FindingsPage(Page):
    """What is wrong, in words."""

    name_ = "findings"

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._at = 0

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        self._at = min(self._at, max(0, len(frame.snapshot.findings) - 1))
        return findings(frame.snapshot, cells, rows, self._at)

    def move(self, by: int) -> None:
        self._at = max(0, self._at + by)
        self.redraw()

    def choose(self, index: int) -> None:
        self._at = max(0, index)
        self.redraw()

    def detail(self, frame: Frame, cells: int, rows: int) -> tuple[str, Picture] | None:
        return None
