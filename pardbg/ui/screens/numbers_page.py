"""The numbers page: a comparison with a reference, module by module."""

from __future__ import annotations

from collections.abc import Sequence

from pardbg.analysis.same.module_rows import ModuleRow
from pardbg.control.language.arguments import at_module
from pardbg.render.draw.cells import Picture
from pardbg.render.pages.module_numbers import listed, module_detail, numbers
from pardbg.session.source_files import place_of
from pardbg.ui.engine.feed import Frame, Want
from pardbg.ui.screens.row_pages import RowsPage


class NumbersPage(RowsPage):
    """Page of modules in the order of execution; begins at the module to look at first."""

    name_ = "numbers"

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        at, source = self.at(frame), frame.source
        return numbers(frame.sameness, cells, rows, at, self.contains, source, frame.snapshot)

    def rows(self, frame: Frame) -> Sequence[ModuleRow]:
        return listed(frame.sameness, self.contains)

    def key(self, row: ModuleRow) -> object:
        return row.name

    def default_row(self, frame: Frame, rows: Sequence[ModuleRow]) -> int:
        return next((at for at, row in enumerate(rows) if row.first), 0)

    def want(self) -> Want:
        found = self.shared.frame.sameness if self.shared.frame is not None else None
        place = found.found.place if found is not None else None
        return Want(sameness=True, source=None if place is None else place_of(place.source))

    def break_text(self, frame: Frame) -> str:
        """Return a breakpoint after the selected module's forward; if it differs in backward alone,
        at the gradient of its output."""
        rows = self.rows(frame)
        if frame.sameness is None or not rows:
            return ""
        row = rows[self.at(frame)]
        return at_module(row.name, not row.first or frame.sameness.first[1])

    def detail(self, frame: Frame, cells: int, rows: int) -> tuple[str, Picture] | None:
        listed_rows = self.rows(frame)
        if frame.sameness is None or not listed_rows:
            return None
        row = listed_rows[self.at(frame)]
        return row.name or "model", module_detail(frame.sameness.found, row, cells)
