"""9 Output."""

from __future__ import annotations

from pardbg.render.draw.cells import Picture
from pardbg.render.pages.output import output
from pardbg.ui.engine.feed import Frame, OutputWant, Want
from pardbg.ui.screens.base import Page

_LIMIT = 2000


class OutputPage(Page):
    """What the job prints; the filter is applied by the analysis."""

    name_ = "output"

    def want(self) -> Want:
        return Want(output=OutputWant(_LIMIT, self.contains or None))

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        return output(frame.snapshot, frame.output, self.contains, cells, rows)

    def move(self, by: int) -> None:
        self.scroll_rows(by)

    def detail(self, frame: Frame, cells: int, rows: int) -> tuple[str, Picture] | None:
        return None
