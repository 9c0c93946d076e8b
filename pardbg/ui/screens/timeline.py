"""3 Timeline."""

from __future__ import annotations

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.render.draw.cells import Picture
from pardbg.render.pages.timeline import Window, columns, timeline
from pardbg.ui.engine.feed import Frame, TimelineWant, Want
from pardbg.ui.screens.base import Page, Shared
from pardbg.words import whole

_LEAST_NS, _MOST_NS = 1_000, 24 * 3600 * 1_000_000_000


class TimelinePage(Page):
    """Lanes of every rank, in a window that ends at the cursor."""

    name_ = "timeline"

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._span_ns: int | None = None

    def want(self) -> Want:
        return Want(timeline=TimelineWant(self._span_ns, columns(max(20, self.app.size.width))))

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        window = Window(frame.lanes_t0_ns, frame.lanes_t1_ns)
        lanes = frame.lanes
        wanted = whole(self.contains)
        if wanted is not None:
            lanes = {rank: row for rank, row in lanes.items() if rank == wanted}
        elif self.contains:
            lanes = {
                rank: {name: spans for name, spans in row.items() if self.contains in name}
                for rank, row in lanes.items()
            }
        return timeline(frame.snapshot, lanes, window, cells, rows, self.shared.rank)

    def zoom(self, by: int) -> bool:
        frame = self.shared.frame
        if frame is None:
            return True
        span = max(1, frame.lanes_t1_ns - frame.lanes_t0_ns)
        if by == 0:
            span = frame.snapshot.t_ns - frame.snapshot.t_begin_ns
        else:
            span = span // 2 if by > 0 else span * 2
        self._span_ns = min(max(span, _LEAST_NS), _MOST_NS)
        return True

    def time_step_ns(self, snapshot: Snapshot) -> int:
        frame = self.shared.frame
        if frame is None or frame.lanes_t1_ns <= frame.lanes_t0_ns:
            return super().time_step_ns(snapshot)
        return max(1, (frame.lanes_t1_ns - frame.lanes_t0_ns) // 40)
