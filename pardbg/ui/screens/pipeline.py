"""2 Pipeline."""

from __future__ import annotations

from pardbg.analysis.model import Snapshot
from pardbg.render.cells import Picture
from pardbg.render.pipeline import Look, pipeline
from pardbg.ui.engine import Frame
from pardbg.ui.screens.base import Page


class PipelinePage(Page):
    """The schedule as planned and as seen."""

    name_ = "pipeline"

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        look = Look(self.shared.rank, at_cursor=not frame.following)
        return pipeline(frame.snapshot, cells, rows, look)

    def ranks(self) -> list[int]:
        frame = self.shared.frame
        view = frame.snapshot.pipeline if frame else None
        step = view.step or view.last_complete if view else None
        return [row.rank for row in step.ranks] if step else super().ranks()

    def time_step_ns(self, snapshot: Snapshot) -> int:
        """About one column of the drawing."""
        view = snapshot.pipeline
        step = view.last_complete or view.step if view else None
        if step is None:
            return super().time_step_ns(snapshot)
        return max(1, (step.t1_ns - step.t0_ns) // max(20, self.size.width - 40))
