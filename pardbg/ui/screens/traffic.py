"""5 Traffic."""

from __future__ import annotations

from pardbg.analysis.comm.traffic import Edge
from pardbg.render.draw.cells import Picture
from pardbg.render.pages.traffic import TrafficPageState, ordered, traffic
from pardbg.ui.engine.feed import Frame
from pardbg.ui.screens.base import Page, Shared

Chosen = tuple[int, int, str]


class TrafficPage(Page):
    """Ring or matrix, and the edges by rate."""

    name_ = "traffic"

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._chosen: Chosen | None = None
        """What is chosen: edges are sorted anew by their rates. None: the busiest."""
        self._matrix = False

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        state = TrafficPageState(self._at(frame), self._matrix)
        return traffic(frame.snapshot, cells, rows, state)

    def _at(self, frame: Frame) -> int:
        """Where the chosen edge stands now."""
        names = [_name(edge) for edge in ordered(frame.snapshot.traffic)]
        return names.index(self._chosen) if self._chosen in names else 0

    def move(self, by: int) -> None:
        frame = self.shared.frame
        if frame is not None:
            self.choose(self._at(frame) + by)

    def choose(self, index: int) -> None:
        frame = self.shared.frame
        edges = ordered(frame.snapshot.traffic) if frame is not None else []
        if edges:
            self._chosen = _name(edges[min(max(0, index), len(edges) - 1)])
        self.redraw()

    def follow(self) -> None:
        self._chosen = None
        super().follow()

    def other(self) -> bool:
        self._matrix = not self._matrix
        self.redraw()
        return True

    def detail(self, frame: Frame, cells: int, rows: int) -> tuple[str, Picture] | None:
        return None


def _name(edge: Edge) -> Chosen:
    return edge.src, edge.dst, edge.source
