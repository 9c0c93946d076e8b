"""What the keys and commands about time do: the main screen's other half."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pardbg.analysis.base.values import Evidence
from pardbg.render.draw.cells import Picture
from pardbg.render.frame.bookmarks import bookmark_list
from pardbg.session.navigation.travel import UNITS
from pardbg.store.bookmarks import Bookmark
from pardbg.ui.commands import command_line
from pardbg.ui.engine.feed import Frame, Want
from pardbg.ui.engine.landmarks import Journey
from pardbg.ui.screens.panel import Draw

if TYPE_CHECKING:
    from pardbg.ui.engine.cursor import TimeCursor
    from pardbg.ui.screens.base import Page, Shared

NOTE = "m"
"""The prompt asks for a bookmark's note."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What the main screen may ask of the app."""

    want: Callable[[Want], None]
    wake: Callable[[], None]
    go: Callable[[Journey], None]
    mark: Callable[[Bookmark], None]
    """Keep a bookmark; one without text takes the mark at its time away."""


class TimeKeys:
    """Actions about time; ``do_<id>`` as the registry names them."""

    shared: Shared
    _cursor: TimeCursor
    _links: Callbacks
    _live: bool
    unit = UNITS[0]
    """What ``,`` and ``.`` move by."""

    if TYPE_CHECKING:

        @property
        def page(self) -> Page: ...

        def open_panel(self, title: str, draw: Draw) -> None: ...

        def say(self, text: str, style: str = "dim") -> None: ...

        def paint(self) -> None: ...

        def show_page(self, name: str) -> None: ...

        def ask(self, kind: str, text: str = "") -> None: ...

    # ---------------------------------------------------------------- playing

    def do_play(self, _argument: str) -> None:
        self._cursor.toggle()
        self._links.wake()

    def do_slower(self, _argument: str) -> None:
        self._cursor.change_speed(-1)
        self._links.wake()

    def do_faster(self, _argument: str) -> None:
        self._cursor.change_speed(1)
        self._links.wake()

    def do_reverse(self, _argument: str) -> None:
        self._cursor.set_speed(-self._cursor.speed)
        self._links.wake()

    def do_speed(self, argument: str) -> None:
        self._cursor.set_speed(command_line.factor(argument))
        self._links.wake()

    # ---------------------------------------------------------------- moving

    def _move(self, by_ns: int) -> None:
        frame = self.shared.frame
        if frame is not None:
            self._cursor.stop()
            self._cursor.move(by_ns, frame.snapshot.t_ns)
            self._links.wake()

    def _one(self, whole_step: bool) -> int:
        frame = self.shared.frame
        if frame is None:
            return 0
        if whole_step:
            return frame.snapshot.step_ns or 1_000_000_000
        return self.page.time_step_ns(frame.snapshot)

    def do_back(self, _argument: str) -> None:
        self._move(-self._one(False))

    def do_forward(self, _argument: str) -> None:
        self._move(self._one(False))

    def do_step_back(self, _argument: str) -> None:
        self._move(-self._one(True))

    def do_step_forward(self, _argument: str) -> None:
        self._move(self._one(True))

    def do_begin(self, _argument: str) -> None:
        frame = self.shared.frame
        if frame is not None:
            self._cursor.stop()
            self._cursor.seek(frame.begin_ns)
            self._links.wake()

    def do_end(self, _argument: str) -> None:
        self.do_follow("")

    def do_follow(self, _argument: str) -> None:
        self._cursor.follow()
        self.page.follow()
        self._links.wake()

    def _go(self, goto: str = "", by: int = 0) -> None:
        frame = self.shared.frame
        step = frame.snapshot.step if frame is not None else None
        self._links.go(Journey(goto, self.unit, by, self.shared.rank, step))

    def do_last(self, _argument: str) -> None:
        self._go(by=-1)

    def do_following(self, _argument: str) -> None:
        self._go(by=1)

    def jump_to(self, evidence: Evidence) -> None:
        """To the moment, the rank and the screen that show something."""
        if evidence.rank is not None:
            self.shared.rank = evidence.rank
        self._cursor.stop()
        self._cursor.seek(evidence.t_ns)
        self.show_page(evidence.screen)
        self._links.wake()

    def do_goto(self, argument: str) -> None:
        if not argument:
            raise command_line.CommandError(f"goto where? {command_line.PLACES}")
        self._go(goto=argument)

    def do_unit(self, argument: str) -> None:
        if not argument:
            self.unit = UNITS[(UNITS.index(self.unit) + 1) % len(UNITS)]
        elif argument in UNITS:
            self.unit = argument
        else:
            raise command_line.CommandError(f"no unit {argument!r}: {', '.join(UNITS)}")
        whose = f" of rank {self.shared.rank}" if self.unit in ("action", "op") else ""
        self.say(f", and . move by {self.unit}{whose}")

    # ---------------------------------------------------------------- zoom

    def do_zoom_in(self, argument: str) -> None:
        by = {"": 1, "in": 1, "out": -1, "all": 0}.get(argument)
        if by is None:
            raise command_line.CommandError("zoom in, zoom out or zoom all")
        if not self.page.zoom(by):
            self.say("zoom works on 3 Timeline")
        self._links.want(self.page.want())

    def do_zoom_out(self, _argument: str) -> None:
        self.do_zoom_in("out")

    # ---------------------------------------------------------------- bookmarks

    def do_mark(self, argument: str) -> None:
        if argument:
            self.bookmark(argument)
        else:
            self.ask(NOTE)

    def bookmark(self, note: str) -> None:
        """Mark the moment that is on the screen."""
        frame = self.shared.frame
        if frame is not None:
            self._links.mark(Bookmark(frame.snapshot.t_ns, note.strip() or "bookmark"))

    def do_unmark(self, argument: str) -> None:
        frame = self.shared.frame
        known = frame.bookmarks if frame is not None else ()
        if not known:
            raise command_line.CommandError("no bookmark in this run (m sets one)")
        if not argument.isdecimal() or not 1 <= int(argument) <= len(known):
            raise command_line.CommandError(f"which bookmark? 1 to {len(known)} (`:marks`)")
        self._links.mark(Bookmark(known[int(argument) - 1].t_ns, ""))

    def do_marks(self, _argument: str) -> None:
        def draw(cells: int, rows: int) -> Picture:
            frame: Frame | None = self.shared.frame
            known = frame.bookmarks if frame is not None else ()
            return bookmark_list(known, frame.snapshot if frame is not None else None, cells, rows)

        self.open_panel("bookmarks", draw)
