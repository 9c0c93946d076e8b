"""Base class of all pages: the newest frame, the selected rank, and the handlers of keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from textual import events

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.findings.finding import Evidence
from pardbg.render.draw.cells import Line, Picture
from pardbg.render.frame.beside import beside
from pardbg.render.frame.panels import empty, is_starting, starting
from pardbg.render.frame.stacks import Entry, Stack
from pardbg.render.pages.overview.rank_facts import rank as rank_page
from pardbg.render.pages.pipeline.schedule import short_next
from pardbg.render.pages.timeline import around
from pardbg.ui.engine.feed import Frame, OutputWant, Want
from pardbg.ui.screens.page_panels import Panels
from pardbg.ui.widgets.lines import PicturePane

_PATIENCE_S = 0.1
"""Time for which a page may show its picture of an earlier moment."""


@dataclass(slots=True)
class Shared:
    """State shared by all pages: above all, the selected rank."""

    rank: int = 0
    part: int | None = None
    """Number of the shown life or role; None: the newest life."""
    frame: Frame | None = None
    columns: tuple[str, ...] = ()
    """Columns of the ranks that the user chose; empty: as many as fit."""
    loading: str = "waiting for the first record …"
    can_control: bool = False
    you: str = ""
    """This viewer's name in the audit trail."""
    typed: tuple[Entry, ...] = ()
    """Lines of the prompt with their answers, oldest first."""
    console_rows: int = 0
    """Lines of the console that the visible page shows."""
    stacks: dict[int, Stack] = field(default_factory=dict)
    """Answer to the last ``where``: rank -> stack."""
    stacks_ns: int | None = None
    stacks_held: bool = False
    """Whether the ranks were held then: as they run on, they leave."""
    frame_at: int = 0
    """Number of the selected frame of the selected rank; 0 the innermost."""
    every_frame: bool = False
    """Whether libraries' frames count, too."""

    @property
    def place(self) -> str:
        """Return the prompt's text: the selected rank and, if it is held, the held op or action."""
        held = self.frame.snapshot.control.held if self.frame is not None else {}
        at = f" r{self.rank} {short_next(held[self.rank], True)}" if self.rank in held else ""
        return f"(pardbg{at})"


class Page(PicturePane):
    """Base of the pages. Subclasses draw; they may have rows to select, zoom, and a detail."""

    name_ = ""
    unit = ""
    """Unit that ``,`` and ``.`` move by on this page, if the page has its own."""
    twofold = False
    """Whether the page shows both of two runs, one over the other."""
    opens = True
    """Whether enter opens or selects something on this page."""
    sections: Collection[str] = ()
    """Sections of a snapshot (SECTIONS) that the page draws."""
    lacks = ""
    """Text of the page while a job starts; empty: the page can draw then, too."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(id=self.name_)
        self.shared = shared
        self.contains = ""
        """Text of the filter."""
        self.panels = Panels()

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        """Return the page's picture."""
        raise NotImplementedError

    def want(self) -> Want:
        """Return the data that the page needs of the engine beyond the snapshot."""
        return Want()

    def break_text(self, frame: Frame) -> str:
        """Return the condition of a breakpoint at the selected row; empty: no breakpoint is
        possible."""
        return ""

    def wanted(self) -> Want:
        """Return the page's wanted data, with the newest line of output while the job starts."""
        frame, want = self.shared.frame, self.want()
        early = frame is None or self._starts(frame.snapshot)
        return replace(want, output=OutputWant(1)) if early and want.output is None else want

    def has_nothing(self, snapshot: Snapshot) -> bool:
        """Return whether the page cannot draw anything yet of a starting job."""
        return not snapshot.ranks

    def _starts(self, snapshot: Snapshot) -> bool:
        return bool(self.lacks) and is_starting(snapshot) and self.has_nothing(snapshot)

    def ranks_drawn(self) -> frozenset[int] | None:
        """Return the ranks on the screen, and about a screen more around them and the selected
        rank; None: all. Equal while rows move little, since each change requests a frame."""
        ranks, found = self.ranks(), set[int]()
        for rank in (self.shared.rank, *self._first_in_view()):
            near = around(ranks, rank, self.app.size.height, None)
            if near is None or self.contains:
                return None
            found.update(near)
        return frozenset(found)

    def _first_in_view(self) -> Sequence[int]:
        """Return a rank in the uppermost line on the screen, if lines are ranks."""
        return self.rows_in_view()[:1]

    def redraw(self) -> None:
        """Draw from the newest frame, if the page is visible and the frame was made for it."""
        if not self.display or self.size.width < 1 or _waits(self):
            return
        cells, rows = self.size
        frame = self.shared.frame
        if frame is None:
            self.show_picture(empty(cells, rows, self.shared.loading))
        else:
            self.show_picture(self.panels.draw(partial(self._drawn, frame), cells, rows))

    @property
    def ready(self) -> bool:
        """Return whether the newest frame has the sections that the page draws."""
        frame = self.shared.frame
        return frame is None or frame.sections.issuperset(self.sections)

    def _drawn(self, frame: Frame, cells: int, rows: int) -> Picture:
        """Return the page's picture; for two runs both, one over the other, if possible."""
        if self._starts(frame.snapshot):
            return starting(frame.snapshot, cells, rows, self.lacks, frame.output or ())
        other = frame.other
        if other is None or not self.twofold:
            return self.draw(frame, cells, rows)

        def draw(snapshot: Snapshot, width: int, height: int) -> Picture:
            schedule = other.schedule if snapshot is other.snapshot else frame.schedule
            half = replace(frame, snapshot=snapshot, schedule=schedule, other=None, ticks=None)
            return self.draw(half, width, height)

        return beside(
            frame.snapshot, other.snapshot, other.name, other.by, other.note, draw, cells, rows
        )

    def marked(self, lines: Sequence[Line], foot: Sequence[Line]) -> Sequence[Line]:
        return self.panels.marked(lines, foot, self.rows_shown(), self.size.width)

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
        """Return the selectable ranks, top to bottom."""
        frame = self.shared.frame
        return [row.rank for row in frame.snapshot.ranks] if frame else []

    def choose(self, index: int) -> None:
        """Select the rank of a clicked row, whose index is the rank on this page."""
        if index in self.ranks():
            self.shared.rank = index
        self.redraw()

    def zoom(self, by: int) -> bool:
        """Zoom: +1 closer, -1 wider, 0 everything; False if the page has no zoom."""
        return False

    def other(self) -> bool:
        """Switch to the page's other form; return False if it has none."""
        return False

    def grid(self) -> bool:
        """Switch between ticks and time; False if the page has no ticks."""
        return False

    def swap_axes(self) -> bool:
        """Put the mesh's next axis first; False if the page has no mesh."""
        return False

    def cell(self, by: int) -> bool:
        """Select the next or previous cell; return False if the page has no cells."""
        return False

    def match(self, by: int) -> bool:
        """Go to the next or previous match; return False without a search."""
        return False

    def pick(self, index: int, x: int) -> None:
        """Handle a click on column ``x`` of a row."""
        self.choose(index)

    def turn(self, by: int) -> bool:
        """Go to the next (+1) or previous (-1) of several things of which the page shows one;
        return False if there is just one."""
        return False

    def follow(self) -> None:
        """Go back to the newest rows."""
        self.follow_end()

    def filter(self, text: str) -> None:
        self.contains = text
        self.redraw()

    def time_step_ns(self, snapshot: Snapshot) -> int:
        """Return the time that one press of an arrow moves by, ns: 1/20 of a step by default."""
        return max(1, (snapshot.step_ns or 100_000_000) // 20)

    def jump(self, frame: Frame) -> Evidence | None:
        """Return the evidence that enter goes to; None: enter opens the detail."""
        return None

    def copied(self, _frame: Frame) -> str:
        """Return the text that y copies; empty: the page has none."""
        return ""

    def detail(self, frame: Frame, cells: int, rows: int) -> tuple[str, Picture] | None:
        """Return title and picture of the detail panel: the selected rank by default."""
        return f"rank {self.shared.rank}", rank_page(frame.snapshot, self.shared.rank, cells, rows)


def _waits(page: Page) -> bool:
    """Return whether the page waits for its frame, which comes at once; if the machine is busy, the
    picture of an earlier moment goes."""

    def forget() -> None:
        if page.display and not page.ready:
            page.show_picture(empty(*page.size, "working out what this page shows …"))

    if not page.ready:
        page.set_timer(_PATIENCE_S, forget)
    return not page.ready
