"""5 Traffic."""

from __future__ import annotations

from pardbg.render.draw.cells import Picture
from pardbg.render.pages.traffic.page import TrafficPageState, traffic
from pardbg.ui.engine.feed import Frame
from pardbg.ui.screens.base import Page, Shared


class TrafficPage(Page):
    """Ring or matrix, and the edges by rate."""

    name_ = "traffic"

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._at = 0
        self._matrix = False

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        self._at = min(self._at, max(0, len(frame.snapshot.traffic.edges) - 1))
        return traffic(frame.snapshot, cells, rows, TrafficPageState(self._at, self._matrix))

    def move(self, by: int) -> None:
        self._at = max(0, self._at + by)
        self.redraw()

    def choose(self, index: int) -> None:
        self._at = max(0, index)
        self.redraw()

    def other(self) -> bool:
        self._matrix = not self._matrix
        self.redraw()
        return True

    def detail(self, frame: Frame, cells: int, rows: int) -> tuple[str, Picture] | None:
        return None
