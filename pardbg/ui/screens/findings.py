"""8 Findings."""

from __future__ import annotations

from pardbg.analysis.findings.shared import Evidence, Finding
from pardbg.render.draw.cells import Picture
from pardbg.render.pages.findings import WIDE, Around, findings, ordered
from pardbg.render.pages.timeline import Window
from pardbg.ui.engine.feed import Frame, TimelineWant, Want
from pardbg.ui.screens.base import Page, Shared

Chosen = tuple[str, tuple[int, ...], str | None, int | None]


class FindingsPage(Page):
    """List findings in words; enter goes to the moment and the place that show it."""

    name_ = "findings"

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._at = 0
        self._chosen: Chosen | None = None
        """What is chosen: findings come and go around it."""

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        found = [_name(f) for f in ordered(frame.snapshot.findings)]
        if self._chosen in found:
            self._at = found.index(self._chosen)
        self._at = min(self._at, max(0, len(found) - 1))
        around = Around(
            frame.lanes, Window(frame.lanes_t0_ns, frame.lanes_t1_ns),
            () if frame.snapshot.live else frame.findings,
        )  # fmt: skip
        return findings(frame.snapshot, cells, rows, self._at, around)

    def want(self) -> Want:
        """Lanes up to the moment of the chosen finding."""
        frame = self.shared.frame
        found = ordered(frame.snapshot.findings) if frame is not None else []
        if self._at >= len(found):
            return Want()
        width = self.app.size.width
        columns = (width * 3 // 5 if width >= WIDE else width) - 16
        return Want(timeline=TimelineWant(None, max(10, columns), end_ns=found[self._at].t_ns))

    def move(self, by: int) -> None:
        self.choose(self._at + by)

    def point_at(self, finding: Finding) -> None:
        """Choose it, now or as soon as it is there."""
        self._chosen = _name(finding)
        self.redraw()

    def choose(self, index: int) -> None:
        frame = self.shared.frame
        found = ordered(frame.snapshot.findings) if frame is not None else []
        self._at = min(max(0, index), max(0, len(found) - 1))
        self._chosen = _name(found[self._at]) if found else None
        self.redraw()

    def jump(self, frame: Frame) -> Evidence | None:
        found = ordered(frame.snapshot.findings)
        return found[self._at].evidence if self._at < len(found) else None

    def detail(self, frame: Frame, cells: int, rows: int) -> tuple[str, Picture] | None:
        return None


def _name(finding: Finding) -> Chosen:
    return finding.kind, finding.culprits, finding.group, finding.seq
