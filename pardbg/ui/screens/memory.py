"""6 Memory."""

from __future__ import annotations

from pardbg.render.draw.cells import Picture
from pardbg.render.pages.memory import memory
from pardbg.ui.engine.feed import Frame, Want
from pardbg.ui.screens.base import Page


class MemoryPage(Page):
    """Stacked bars by category beside the expected bytes."""

    name_ = "memory"

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        return memory(frame.snapshot, cells, rows, self.shared.rank, frame.peaks)

    def want(self) -> Want:
        return Want(peaks=True)
