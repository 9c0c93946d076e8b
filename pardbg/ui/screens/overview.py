"""1 Overview."""

from __future__ import annotations

from pardbg.render.draw.cells import Picture
from pardbg.render.pages.overview import OverviewPageState, overview
from pardbg.ui.engine.feed import Frame, OutputWant, Want
from pardbg.ui.screens.base import Page

_TAIL = 40


class OverviewPage(Page):
    """Every rank in a row."""

    name_ = "overview"
    twofold = True

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        look = OverviewPageState(self.shared.rank, self.contains, frame.ahead)
        return overview(frame.snapshot, cells, rows, look, frame.output)

    def want(self) -> Want:
        return Want(output=OutputWant(_TAIL), ahead=True)
