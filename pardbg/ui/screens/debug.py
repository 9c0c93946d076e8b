"""Page 7, Debug."""

from __future__ import annotations

from pardbg.events.commands import WhereFound
from pardbg.render.draw.cells import Picture
from pardbg.render.frame.stacks import Entry, Spot, Stack, spots_in_reach, stacks_of
from pardbg.render.pages.debug import DebugPageState, debug, stacks_shown
from pardbg.session.source_files import Place
from pardbg.ui.engine.feed import Frame, OutputWant, Want
from pardbg.ui.screens.base import Page, Shared

_CONSOLE = 500
_PRINTED = 40
"""Lines of output where there is room."""
_LAST_NS = 1 << 62
"""In a recording, what is typed comes after the audit trail, wherever the cursor is."""


class DebugPage(Page):
    """Held ranks, stacks, source, console with audit trail."""

    name_ = "debug"

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._stacks: dict[int, Stack] = {}
        self._stacks_ns: int | None = None
        self.frame = 0
        """Which frame is looked at; 0 the innermost."""
        self.every_frame = False
        """Whether those of libraries count, too."""

    def _look(self, frame: Frame | None) -> DebugPageState:
        ended = self.shared.can_control and frame is not None and frame.finished
        control = self.shared.can_control and not ended
        return DebugPageState(
            self.shared.rank, self._stacks, self._stacks_ns, self.shared.typed, control, ended,
            self.shared.you,
            frame.source if frame is not None else None, self.frame,
            self.every_frame, frame.output or () if frame is not None else (),
        )  # fmt: skip

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        return debug(frame.snapshot, cells, rows, self._look(frame))

    def want(self) -> Want:
        spots = self._in_reach()
        spot = spots[min(self.frame, len(spots) - 1)] if spots else None
        place = Place(spot.file, spot.line) if spot is not None and spot.file else None
        return Want(source=place, output=OutputWant(_PRINTED))

    def _in_reach(self) -> list[Spot]:
        """Return the selected rank's frames, innermost first."""
        frame = self.shared.frame
        if frame is None:
            return []
        stacks, _ = stacks_shown(frame.snapshot, self._look(frame))
        return spots_in_reach(stacks.get(self.shared.rank, ()), self.every_frame)

    def move(self, by: int) -> None:
        self.frame = 0
        super().move(by)

    def look_from(self, number: int) -> bool:
        """Select frame ``number``, 0 the innermost; False if there is no such frame."""
        if not 0 <= number < len(self._in_reach()):
            return False
        self.frame = number
        self.redraw()
        return True

    def stacks(self, found: WhereFound) -> int:
        """Take the answer to ``where``; return the number of ranks it holds."""
        self._stacks = stacks_of(found)
        frame = self.shared.frame
        self._stacks_ns = frame.snapshot.t_end_ns if frame else None
        self.redraw()
        return len(self._stacks)

    @property
    def asked(self) -> bool:
        """Return whether the newest line was typed and has no answer yet."""
        return bool(self.shared.typed) and self.shared.typed[-1].style == "strong"

    def say(self, text: str, style: str = "dim", n: int = 0) -> None:
        """Add a line to the console and bring it into view; ``n``: number of the CONTROL message
        that says the same."""
        frame = self.shared.frame
        live = frame is not None and self.shared.can_control
        t_ns = frame.snapshot.t_end_ns if frame is not None and live else _LAST_NS
        if typed := self.shared.typed:
            t_ns = max(t_ns, typed[-1].t_ns)
        self.shared.typed = (*typed[-_CONSOLE:], Entry(t_ns, text, style, n))
        self.follow_end()
        self.redraw()
