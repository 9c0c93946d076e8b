"""2 Pipeline."""

from __future__ import annotations

from pardbg.analysis.base.values import Snapshot
from pardbg.render.draw.cells import Picture
from pardbg.render.pages.pipeline.page import PipelinePageState, pipeline
from pardbg.render.pages.pipeline.whatif import whatif
from pardbg.ui.engine.feed import Frame, Want
from pardbg.ui.screens.base import Page, Shared


class PipelinePage(Page):
    """The schedule as planned and as seen; or what other schedules would take."""

    name_ = "pipeline"
    twofold = True

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._whatif = False

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        if self._whatif:
            view = frame.snapshot.pipeline
            coming = view is not None and view.last_complete is not None
            return whatif(frame.whatif, cells, rows, coming)
        look = PipelinePageState(self.shared.rank, at_cursor=not frame.following)
        return pipeline(frame.snapshot, cells, rows, look, frame.schedule)

    def want(self) -> Want:
        return Want(whatif=self._whatif, schedule=not self._whatif, pipeline_of=self.shared.rank)

    def turn(self, by: int) -> bool:
        """To the pipeline before or after this one; False where there is one at most."""
        frame = self.shared.frame
        names = frame.snapshot.pipelines if frame else ()
        view = frame.snapshot.pipeline if frame else None
        if len(names) < 2 or view is None:
            return False
        self.shared.rank = names[(view.index + by) % len(names)].ranks[0]
        return True

    def other(self) -> bool:
        self._whatif = not self._whatif
        self.redraw()
        return True

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
