"""Pages of rows: overview, collectives, traffic, memory, findings, output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from pardbg.analysis.answers.snapshot import MANY, Snapshot
from pardbg.analysis.findings.finding import Evidence, Finding
from pardbg.analysis.findings.kinds.stall_kinds import Stalled
from pardbg.render.draw.cells import Picture
from pardbg.render.draw.signs import has_utf8
from pardbg.render.frame.panels import empty
from pardbg.render.pages.collectives import (
    CollectivesPageState,
    begins_at,
    collectives,
    detail,
    key_of,
    rows_of,
)
from pardbg.render.pages.findings import (
    WIDE,
    Around,
    about,
    findings,
    in_plain_text,
    ordered,
    place_of,
)
from pardbg.render.pages.memory import has_figures, memory
from pardbg.render.pages.mesh.page import layout_of, mesh, square_at
from pardbg.render.pages.mesh.square_layout import SquareLayout
from pardbg.render.pages.output import MOST, matches, output
from pardbg.render.pages.overview.page import OverviewPageState, overview
from pardbg.render.pages.overview.rank_table import WIDE as DRAWS_PIPELINE
from pardbg.render.pages.timeline import Window
from pardbg.render.pages.traffic import TrafficPageState, busiest, traffic
from pardbg.session.source_files import Place
from pardbg.ui.engine.feed import Frame, OutputWant, TimelineWant, Want
from pardbg.ui.screens.base import Page, Shared


class OverviewPage(Page):
    """Page with a row per rank; for many ranks, a square each."""

    name_ = "overview"
    lacks = "A rank is a row here as soon as it makes its first process group."
    twofold = True
    sections = ("courses",)
    _meshed: bool | None = None
    """Whether ranks are squares, if the user chose; None: not chosen."""
    _measure = 0
    _turned = 0

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        look = self._look(frame)
        if self._by_mesh(frame):
            return mesh(frame.snapshot, cells, rows, look)
        return overview(frame.snapshot, cells, rows, look, frame.output or ())

    def _look(self, frame: Frame) -> OverviewPageState:
        known = () if frame.snapshot.live else frame.findings
        return OverviewPageState(
            self.shared.rank, self.contains, frame.ahead, frame.looking, known, self._measure,
            self._turned, frame.schedule, not has_utf8(), frame.events, self.shared.columns,
        )  # fmt: skip

    def _by_mesh(self, frame: Frame | None) -> bool:
        if frame is None or self.contains or not frame.snapshot.mesh.axes or frame.other:
            return False
        return len(frame.snapshot.ranks) > MANY if self._meshed is None else self._meshed

    def ranks_drawn(self) -> frozenset[int] | None:
        """Return only the chosen rank of the mesh: all others' rows are made in turn."""
        if self._by_mesh(self.shared.frame):
            return frozenset((self.shared.rank,))
        return super().ranks_drawn()

    def grid(self) -> bool:
        frame = self.shared.frame
        self._meshed = not self._by_mesh(frame)
        self.redraw()
        return self._by_mesh(frame) is self._meshed

    def other(self) -> bool:
        self._measure += 1
        self.redraw()
        return self._by_mesh(self.shared.frame)

    def swap_axes(self) -> bool:
        self._turned += 1
        self.redraw()
        return self._by_mesh(self.shared.frame)

    def move(self, by: int) -> None:
        if not self._to_square(lambda layout: layout.beside(self.shared.rank, by, 0)):
            super().move(by)

    def cell(self, by: int) -> bool:
        return self._to_square(lambda layout: layout.beside(self.shared.rank, 0, by))

    def choose(self, index: int) -> None:
        if not self._to_square(lambda layout: square_at(layout, index, None)):
            super().choose(index)

    def pick(self, index: int, x: int) -> None:
        if not self._to_square(lambda layout: square_at(layout, index, x)):
            super().pick(index, x)

    def _to_square(self, square: Callable[[SquareLayout], int | None]) -> bool:
        """Select the rank of a square of the mesh; return False if ranks are rows."""
        frame = self.shared.frame
        if frame is None or not self._by_mesh(frame):
            return False
        layout, _ = layout_of(frame.snapshot, *self.size, self._look(frame))
        found = square(layout)
        if found in self.ranks():
            self.shared.rank = found
        self.redraw()
        return True

    def want(self) -> Want:
        frame = self.shared.frame
        drawn = self.size.width >= DRAWS_PIPELINE and not self._by_mesh(frame)
        return Want(output=OutputWant(40), ahead=True, schedule=drawn)


class MemoryPage(Page):
    """Stacked bars by category beside the expected bytes."""

    name_ = "memory"
    sections = ("memory", "traffic")
    lacks = "No memory figures yet: they come with the first optimizer step."

    def has_nothing(self, snapshot: Snapshot) -> bool:
        return not has_figures(snapshot)

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        return memory(
            frame.snapshot, cells, rows, self.shared.rank, frame.peaks, not has_utf8()
        )  # fmt: skip

    def want(self) -> Want:
        return Want(peaks=True)


class RowsPage(Page):
    """A list with one selected row, which stays selected while other rows come and go around it."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._chosen: Any = None
        """Identity of the selected row; None: the user selected none."""
        self._at = 0

    def rows(self, frame: Frame) -> Sequence[Any]:
        """Return the listed rows, top to bottom."""
        raise NotImplementedError

    def _first_in_view(self) -> Sequence[int]:
        return ()

    def key(self, row: Any) -> object:
        """Return the identity of a row."""
        raise NotImplementedError

    def default_row(self, frame: Frame, rows: Sequence[Any]) -> int:
        """Return the row to show while the user has selected none."""
        return 0

    def at(self, frame: Frame) -> int:
        """Return the index of the selected row."""
        rows = self.rows(frame)
        names = [self.key(row) for row in rows]
        here = self._chosen in names
        self._at = names.index(self._chosen) if here else self.default_row(frame, rows)
        return self._at

    def move(self, by: int) -> None:
        if self.shared.frame is not None:
            self.choose(self.at(self.shared.frame) + by)

    def choose(self, index: int) -> None:
        frame = self.shared.frame
        rows = self.rows(frame) if frame is not None else ()
        if rows:
            self._chosen = self.key(rows[min(max(0, index), len(rows) - 1)])
        self.redraw()

    def follow(self) -> None:
        self._chosen = None
        super().follow()

    def detail(self, frame: Frame, cells: int, rows: int) -> tuple[str, Picture] | None:
        return None


class CollectivesPage(RowsPage):
    """Page of ops matched over their ranks; follows the newest until a row is selected."""

    name_ = "collectives"
    sections = ("collectives", "p2p")
    lacks = "No operation has been issued yet."
    _p2p = _by_wait = False

    def has_nothing(self, snapshot: Snapshot) -> bool:
        return not snapshot.collectives and not snapshot.p2p

    @property
    def _look(self) -> CollectivesPageState:
        return CollectivesPageState(self._chosen, self.contains, self._p2p, self._by_wait)

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        return collectives(frame.snapshot, cells, rows, self._look)

    def rows(self, frame: Frame) -> Sequence[Any]:
        return rows_of(frame.snapshot, self._look)

    def key(self, row: Any) -> object:
        return key_of(row)

    def default_row(self, frame: Frame, rows: Sequence[Any]) -> int:
        return begins_at(frame.snapshot, rows, self._by_wait)

    def grid(self) -> bool:
        """Switch between order of time and longest wait first."""
        self._by_wait, self._chosen = not self._by_wait, None
        self.redraw()
        return True

    def other(self) -> bool:
        self._p2p, self._chosen = not self._p2p, None
        self.redraw()
        return True

    def detail(self, frame: Frame, cells: int, rows: int) -> tuple[str, Picture] | None:
        listed = self.rows(frame)
        if not listed:
            return None
        return "operation", detail(listed[self.at(frame)], frame.snapshot, cells, rows)


class TrafficPage(RowsPage):
    """Ring or matrix, and the edges by rate."""

    name_ = "traffic"
    sections = ("traffic", "memory")
    lacks = "Nothing has moved between ranks yet; what a step moves is known after the first one."
    opens = False
    _matrix = False

    def has_nothing(self, snapshot: Snapshot) -> bool:
        return not snapshot.traffic.edges and not snapshot.traffic.ops

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        return traffic(frame.snapshot, cells, rows, TrafficPageState(self.at(frame), self._matrix))

    def rows(self, frame: Frame) -> Sequence[Any]:
        return busiest(frame.snapshot.traffic)

    def key(self, row: Any) -> object:
        return row.src, row.dst, row.source

    def other(self) -> bool:
        self._matrix = not self._matrix
        self.redraw()
        return True


_PRINTED: Final = 40
"""Number of lines of output under a finding."""
FEW_RANKS: Final = 8
"""Ranks up to which what ran last is drawn where nothing is wrong."""


def lanes_of(snapshot: Snapshot, finding: Finding, columns: int) -> TimelineWant:
    """Return the wanted lanes up to a finding's time; for a hang up to the wait's end."""
    end_ns = finding.lasts_until(snapshot.t_ns)
    stalled = isinstance(finding.facts, Stalled)
    span_ns = end_ns - finding.t_ns + (snapshot.step_ns or 0) if stalled else None
    ranks = about(snapshot, finding)
    return TimelineWant(span_ns or None, max(10, columns), ranks, end_ns=end_ns)


def around_of(frame: Frame) -> Around:
    """Return the context of a finding in a frame."""
    return Around(
        frame.lanes, Window(frame.lanes_t0_ns, frame.lanes_t1_ns),
        () if frame.snapshot.live else frame.findings, frame.looking, frame.source,
        frame.output or (),
    )  # fmt: skip


class FindingsPage(RowsPage):
    """Page of findings; enter goes to the time and place of a finding's evidence."""

    name_ = "findings"
    lacks = "No error or warning so far. Little can be judged yet: speed only by whole steps."
    opens = False

    def has_nothing(self, snapshot: Snapshot) -> bool:
        return all(found.severity == "info" for found in snapshot.findings)

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        return findings(frame.snapshot, cells, rows, self.at(frame), around_of(frame))

    def rows(self, frame: Frame) -> Sequence[Finding]:
        return ordered(frame.snapshot.findings)

    def key(self, row: Finding) -> object:
        return row.kind, row.culprits, row.group, row.seq

    def default_row(self, frame: Frame, rows: Sequence[Any]) -> int:
        return min(self._at, max(0, len(rows) - 1))

    def want(self) -> Want:
        """Request the selected finding's lanes, source and output."""
        frame = self.shared.frame
        found = self.rows(frame) if frame is not None else []
        width, printed = self.app.size.width, OutputWant(_PRINTED)
        if frame is None or self._at >= len(found):
            few = frame is not None and len(frame.snapshot.ranks) <= FEW_RANKS
            return Want(timeline=TimelineWant(None, width - 16) if few else None, output=printed)
        beside = width >= WIDE and len(found) > 1
        finding = found[self._at]
        wanted = lanes_of(frame.snapshot, finding, (width * 3 // 5 if beside else width) - 16)
        at = place_of(frame.snapshot, finding)
        source = Place(at[1].file, at[1].line) if at is not None and at[1].file else None
        return Want(timeline=wanted, source=source, output=printed)

    def copied(self, frame: Frame) -> str:
        found = self.rows(frame)
        return in_plain_text(frame.snapshot, found[self._at]) if self._at < len(found) else ""

    def point_at(self, finding: Finding) -> None:
        """Select a finding, now or as soon as the list has it."""
        self._chosen = self.key(finding)
        self.redraw()

    def jump(self, frame: Frame) -> Evidence | None:
        found = self.rows(frame)
        return found[self._at].evidence if self._at < len(found) else None


class OutputPage(Page):
    """The job's output; the analysis applies the filter."""

    name_ = "output"
    opens = False
    _at: int | None = None
    """Number of the line at which a search is."""

    def want(self) -> Want:
        contains = self.contains if self._at is None else ""
        return Want(output=OutputWant(MOST, contains or None))

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        if frame.output is None:  # the frame was made for another page
            return empty(cells, rows, "reading what the job printed …")
        return output(frame.snapshot, frame.output, self.contains, cells, rows, self._at)

    def match(self, by: int) -> bool:
        """Go to the next or previous match, in all lines; return False without a search."""
        frame = self.shared.frame
        if not self.contains or frame is None or frame.output is None:
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
