"""What all pages share: a frame to draw from, a selected rank, and how keys reach them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from textual import events

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.findings.finding import Evidence
from pardbg.render.draw.cells import Picture
from pardbg.render.frame.beside import beside
from pardbg.render.frame.panels import empty
from pardbg.render.pages.overview import rank as rank_page
from pardbg.render.pages.timeline import around
from pardbg.ui.engine.feed import Frame, Want
from pardbg.ui.widgets.lines import PicturePane


@dataclass(slots=True)
class Shared:
    """What the pages have in common: one selected rank everywhere."""

    rank: int = 0
    part: int | None = None
    """The life or role that is looked at; None: the newest life."""
    frame: Frame | None = None
    loading: str = "waiting for the first record …"
    can_control: bool = False


class Page(PicturePane):
    """A page. Subclasses draw; they may select rows of their own, zoom, and open a detail."""

    name_ = ""
    unit = ""
    """What ``,`` and ``.`` move by here, where the page has a unit of its own."""
    twofold = False
    """Of two runs the page shows both, one over the other."""
    sections: Collection[str] = ()
    """Sections of a snapshot (SECTIONS) that the page draws."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(id=self.name_)
        self.shared = shared
        self.contains = ""
        """The filter."""

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        """Return the page as it is now."""
        raise NotImplementedError

    def want(self) -> Want:
        """Return what the page needs of the engine beyond the snapshot."""
        return Want()

    def ranks_drawn(self) -> frozenset[int] | None:
        """Return the ranks on the screen, and about a screen more around them and the selected one;
        None: all. The same while rows move little: each change of it makes a frame."""
        ranks, found = self.ranks(), set[int]()
        for rank in (self.shared.rank, *self._first_in_view()):
            near = around(ranks, rank, self.app.size.height, None)
            if near is None or self.contains:
                return None
            found.update(near)
        return frozenset(found)

    def _first_in_view(self) -> Sequence[int]:
        """A rank in the uppermost line on the screen, where lines are ranks."""
        return self.rows_in_view()[:1]

    def redraw(self) -> None:
        """Draw from the newest frame, where the page is visible and the frame was made for it."""
        if not self.display or self.size.width < 1 or not self.ready:
            return  # the frame that was asked for comes at once
        cells, rows = self.size
        frame = self.shared.frame
        if frame is None:
            self.show_picture(empty(cells, rows, self.shared.loading))
        else:
            self.show_picture(self._drawn(frame, cells, rows))

    @property
    def ready(self) -> bool:
        """Return whether the newest frame has the sections that the page draws."""
        frame = self.shared.frame
        return frame is None or frame.sections.issuperset(self.sections)

    def _drawn(self, frame: Frame, cells: int, rows: int) -> Picture:
        """The page; of two runs, where it can show both, one over the other."""
        other = frame.other
        if other is None or not self.twofold:
            return self.draw(frame, cells, rows)

        def draw(snapshot: Snapshot, width: int, height: int) -> Picture:
            schedule = other.schedule if snapshot is other.snapshot else frame.schedule
            one = replace(frame, snapshot=snapshot, schedule=schedule, other=None, ticks=None)
            return self.draw(one, width, height)

        return beside(
            frame.snapshot, other.snapshot, other.name, other.by, other.note, draw, cells, rows
        )

    def on_show(self, _event: events.Show) -> None:
        self.redraw()

    # ---- keys, called by the main screen

    def move(self, by: int) -> None:
        """Select the rank above or below."""
        ranks = self.ranks()
        if ranks:
            at = ranks.index(self.shared.rank) if self.shared.rank in ranks else 0
            self.shared.rank = ranks[min(max(at + by, 0), len(ranks) - 1)]
        self.redraw()

    def ranks(self) -> list[int]:
        """Return the ranks one can select, top to bottom."""
        frame = self.shared.frame
        return [row.rank for row in frame.snapshot.ranks] if frame else []

    def choose(self, index: int) -> None:
        """A row was clicked: its index is a rank here."""
        if index in self.ranks():
            self.shared.rank = index
        self.redraw()

    def zoom(self, by: int) -> bool:
        """Zoom: +1 closer, -1 wider, 0 everything; False where there is nothing to zoom."""
        return False

    def other(self) -> bool:
        """Switch to the page's other form; False where it has none."""
        return False

    def grid(self) -> bool:
        """Show ticks instead of time, or back; False where there are none."""
        return False

    def cell(self, by: int) -> bool:
        """To the cell before or after the chosen one; False where there are no cells."""
        return False

    def match(self, by: int) -> bool:
        """To the match after or before of what is searched for; False where nothing is."""
        return False

    def pick(self, index: int, x: int) -> None:
        """Column ``x`` of a row was clicked."""
        self.choose(index)

    def turn(self, by: int) -> bool:
        """To what the page shows one of several of, +1 on or -1 back; False where it does not."""
        return False

    def follow(self) -> None:
        """Back to the newest."""
        self.follow_end()

    def filter(self, text: str) -> None:
        self.contains = text
        self.redraw()

    def time_step_ns(self, snapshot: Snapshot) -> int:
        """Return how far one press of an arrow moves: a twentieth of a step unless a page knows
        better."""
        return max(1, (snapshot.step_ns or 100_000_000) // 20)

    def jump(self, frame: Frame) -> Evidence | None:
        """Return where enter goes to; None: it opens the detail."""
        return None

    def detail(self, frame: Frame, cells: int, rows: int) -> tuple[str, Picture] | None:
        """Title and picture of the detail panel; the selected rank unless a page has better."""
        return f"rank {self.shared.rank}", rank_page(frame.snapshot, self.shared.rank, cells, rows)
