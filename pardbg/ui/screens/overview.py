"""1 Overview."""

from __future__ import annotations

from pardbg.render.cells import Picture
from pardbg.render.overview import Look, overview
from pardbg.ui.engine import Frame
from pardbg.ui.screens.base import Page


class OverviewPage(Page):
    """Every rank in a row."""

    name_ = "overview"

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        return overview(frame.snapshot, cells, rows, Look(self.shared.rank, self.contains))
