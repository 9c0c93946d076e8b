"""Handlers of the keys and commands about time: playing, moving, zooming, bookmarks."""

from __future__ import annotations

from collections.abc import Callable

from pardbg.analysis.findings.finding import Evidence
from pardbg.errors import UserError
from pardbg.render.draw.cells import Picture
from pardbg.render.frame.panels import bookmark_list
from pardbg.session.navigation.replay import ReplayClock
from pardbg.session.navigation.travel import UNITS
from pardbg.store.history import Bookmark
from pardbg.ui.commands import command_line
from pardbg.ui.commands.actions import Handlers
from pardbg.ui.engine.cursor import TimeCursor
from pardbg.ui.engine.engine import Engine
from pardbg.ui.engine.feed import Frame
from pardbg.ui.engine.landmarks import Journey
from pardbg.ui.main.screen_port import ScreenPort
from pardbg.ui.screens.panel import Panel
from pardbg.ui.widgets.prompt import NOTE
from pardbg.words import whole


class TimeActions:
    """Actions that move the cursor."""

    def __init__(
        self, view: ScreenPort, cursor: TimeCursor, engine: Engine, keep: Callable[[Bookmark], None]
    ) -> None:
        """Set up the handlers; ``keep`` stores a bookmark, or removes one if its text is empty."""
        self._view, self._cursor, self._engine, self._keep = view, cursor, engine, keep
        self.unit = UNITS[0]
        """Unit that ``,`` and ``.`` move by on a page without a unit of its own."""

    def handlers(self) -> Handlers:
        """Return the handlers by action id."""
        return {
            "play": lambda _: self._play(ReplayClock.toggle),
            "slower": lambda _: self._play(ReplayClock.slower),
            "faster": lambda _: self._play(ReplayClock.faster),
            "reverse": lambda _: self._play(lambda clock, s: clock.set_speed(-clock.speed, s)),
            "speed": self._speed,
            "back": lambda _: self._move(-self._unit_ns(False)),
            "forward": lambda _: self._move(self._unit_ns(False)),
            "step_back": lambda _: self._move(-self._unit_ns(True)),
            "step_forward": lambda _: self._move(self._unit_ns(True)),
            "begin": self._begin,
            "end": self._follow,
            "follow": self._follow,
            "last": lambda _: self._go(by=-1),
            "following": lambda _: self._go(by=1),
            "goto": self._goto,
            "unit": self._unit,
            "zoom_in": self._zoom,
            "zoom_out": lambda _: self._zoom("out"),
            "mark": self._mark,
            "unmark": self._unmark,
            "marks": self._marks,
        }

    # ---------------------------------------------------------------- playing

    def _play(self, change: Callable[[ReplayClock, float], None]) -> None:
        self._cursor.play(change)
        self._engine.wake()

    def _speed(self, argument: str) -> None:
        factor = command_line.factor(argument)
        self._play(lambda clock, s: clock.set_speed(factor, s))

    # ---------------------------------------------------------------- moving

    def _move(self, by_ns: int) -> None:
        frame = self._view.shared.frame
        if frame is not None:
            self._cursor.stop()
            self._cursor.move(by_ns, frame.snapshot.t_ns)
            self._engine.wake()

    def _unit_ns(self, whole_step: bool) -> int:
        frame = self._view.shared.frame
        if frame is None:
            return 0
        if whole_step:
            return frame.snapshot.step_ns or 1_000_000_000
        return self._view.page.time_step_ns(frame.snapshot)

    def _begin(self, _argument: str) -> None:
        if self._view.shared.frame is not None:
            self.seek(self._view.shared.frame.begin_ns)

    def _follow(self, _argument: str) -> None:
        self._cursor.follow()
        self._view.page.follow()
        self._engine.wake()

    def _go(self, goto: str = "", by: int = 0) -> None:
        frame = self._view.shared.frame
        step = frame.snapshot.step if frame is not None else None
        self._engine.go(Journey(goto, self.moves_by, by, self._view.shared.rank, step))

    @property
    def moves_by(self) -> str:
        """Return the unit that ``,`` and ``.`` move by."""
        return self._view.page.unit or self.unit

    def seek(self, t_ns: int) -> None:
        """Move to a time."""
        self._cursor.stop()
        self._cursor.seek(t_ns)
        self._engine.wake()

    def jump_to(self, evidence: Evidence) -> None:
        """Go to the time, rank and screen of a finding's evidence."""
        if evidence.rank is not None:
            self._view.shared.rank = evidence.rank
        self._view.show_page(evidence.screen)
        self.seek(evidence.t_ns)

    def _goto(self, argument: str) -> None:
        if not argument:
            raise UserError(f"goto where? {command_line.PLACES}")
        word, _, number = argument.partition(" ")
        known = self._view.shared.frame.findings if self._view.shared.frame is not None else ()
        at = whole(number.strip(), len(known)) if word == "finding" else None
        if at:
            self._view.show_finding(known[at - 1])
        self._go(goto=argument)

    def _unit(self, argument: str) -> None:
        if not argument:
            self.unit = UNITS[(UNITS.index(self.unit) + 1) % len(UNITS)]
        elif argument in UNITS:
            self.unit = argument
        else:
            raise UserError(f"no unit {argument!r}: {', '.join(UNITS)}")
        self._view.page.unit = ""
        whose = f" of rank {self._view.shared.rank}" if self.unit in ("action", "op") else ""
        self._view.say(f", and . move by {self.unit}{whose}")

    # ---------------------------------------------------------------- zoom

    def _zoom(self, argument: str) -> None:
        by = {"": 1, "in": 1, "out": -1, "all": 0}.get(argument)
        if by is None:
            raise UserError("zoom in, zoom out or zoom all")
        if not self._view.page.zoom(by):
            self._view.say("zoom works on 3 Timeline")
        self._view.want_page()

    # ---------------------------------------------------------------- bookmarks

    def _mark(self, argument: str) -> None:
        if argument:
            self.bookmark(argument)
        else:
            self._view.ask(NOTE)

    def bookmark(self, note: str) -> None:
        """Mark the time on the screen."""
        frame = self._view.shared.frame
        if frame is not None:
            self._keep(Bookmark(frame.snapshot.t_ns, note.strip() or "bookmark"))

    def _unmark(self, argument: str) -> None:
        frame = self._view.shared.frame
        known = frame.bookmarks if frame is not None else ()
        if not known:
            raise UserError("no bookmark in this run (m sets one)")
        number = whole(argument, len(known))
        if not number:
            raise UserError(f"which bookmark? 1 to {len(known)} (`:marks`)")
        self._keep(Bookmark(known[number - 1].t_ns, ""))

    def _marks(self, _argument: str) -> None:
        def draw(cells: int, rows: int) -> Picture:
            frame: Frame | None = self._view.shared.frame
            known = frame.bookmarks if frame is not None else ()
            return bookmark_list(known, frame.snapshot if frame is not None else None, cells, rows)

        self._view.push_panel(Panel("bookmarks", draw))
