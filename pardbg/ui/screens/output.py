"""9 Output."""

from __future__ import annotations

from pardbg.render.draw.cells import Picture
from pardbg.render.pages.output import matches, output
from pardbg.ui.engine.feed import Frame, OutputWant, Want
from pardbg.ui.screens.base import Page, Shared

_LIMIT = 2000


class OutputPage(Page):
    """What the job prints; the filter is applied by the analysis."""

    name_ = "output"

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._at: int | None = None
        """The line that a search stands at."""

    def want(self) -> Want:
        contains = self.contains if self._at is None else ""
        return Want(output=OutputWant(_LIMIT, contains or None))

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        return output(frame.snapshot, frame.output, self.contains, cells, rows, self._at)

    def match(self, by: int) -> bool:
        """To the match after or before, in all lines; False where nothing is searched for."""
        frame = self.shared.frame
        if not self.contains or frame is None:
            return False
        found = matches(frame.output, self.contains)
        if self._at is None:  # the lines are the matches; all of them come with the next frame
            self._at = len(frame.output)
        elif found and by < 0:
            self._at = max((at for at in found if at < self._at), default=found[-1])
        elif found:
            self._at = min((at for at in found if at > self._at), default=found[0])
        self.redraw()
        return True

    def filter(self, text: str) -> None:
        self._at = None
        super().filter(text)

    def move(self, by: int) -> None:
        self.scroll_rows(by)

    def detail(self, frame: Frame, cells: int, rows: int) -> tuple[str, Picture] | None:
        return None
