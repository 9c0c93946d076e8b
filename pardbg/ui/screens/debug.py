"""Page 7, Debug."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.findings.kinds.stall_kinds import Stalled
from pardbg.events.commands import WhereFound
from pardbg.render.draw.cells import Picture
from pardbg.render.frame.stacks import Entry, Spot, spots_in_reach, stacks_of
from pardbg.render.pages.debug import DebugPageState, debug, stacks_shown
from pardbg.render.pages.finding_lanes import ran_last
from pardbg.render.pages.findings import ordered, whole_wait
from pardbg.render.pages.timeline import Window
from pardbg.session.source_files import Place
from pardbg.ui.engine.feed import Frame, OutputWant, TimelineWant, Want
from pardbg.ui.screens.base import Page, Shared
from pardbg.ui.screens.row_pages import FEW_RANKS, around_of, lanes_of

_CONSOLE = 500
_TALL = 46
"""Rows from which on what ran last is drawn too."""
_PRINTED = 40
"""Lines of output if there is room."""
_LAST_NS = 1 << 62
"""Time of typed lines in a recording, ns: after the audit trail, wherever the cursor is."""


class DebugPage(Page):
    """Held ranks, stacks, source, console with audit trail."""

    name_ = "debug"

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        look, wait = look_at(self.shared, frame), _wait(frame)
        if wait is not None:
            more = partial(whole_wait, frame.snapshot, wait, around_of(frame))
            look = replace(look, more=more)
        elif rows >= _TALL and len(frame.snapshot.ranks) <= FEW_RANKS:
            window = Window(frame.lanes_t0_ns, frame.lanes_t1_ns)
            look = replace(look, more=partial(ran_last, frame.snapshot, frame.lanes, window))
        return debug(frame.snapshot, cells, rows, look)

    def want(self) -> Want:
        frame = self.shared.frame
        want = Want(source=source_place(self.shared), output=OutputWant(_PRINTED))
        columns, wait = self.app.size.width - 16, _wait(frame) if frame is not None else None
        if frame is None:
            return want
        if wait is None:
            shown = self.size.height >= _TALL and len(frame.snapshot.ranks) <= FEW_RANKS
            return replace(want, timeline=TimelineWant(None, columns)) if shown else want
        lanes = lanes_of(frame.snapshot, wait, columns)
        return replace(want, timeline=lanes)

    def move(self, by: int) -> None:
        self.shared.frame_at = 0
        super().move(by)

    def look_from(self, number: int) -> bool:
        """Select frame ``number``, 0 the innermost; return False if there is no such frame."""
        if not 0 <= number < len(_in_reach(self.shared)):
            return False
        self.shared.frame_at = number
        self.redraw()
        return True

    def stacks(self, found: WhereFound) -> int:
        """Take the answer to ``where``; return the number of ranks with stacks."""
        self.shared.stacks, frame = stacks_of(found), self.shared.frame
        self.shared.stacks_ns = frame.snapshot.t_end_ns if frame else None
        self.shared.stacks_held = frame is not None and frame.snapshot.control.mode != "running"
        self.redraw()
        return len(self.shared.stacks)

    @property
    def asked(self) -> bool:
        """Return whether the newest line was typed and has no answer yet."""
        return bool(self.shared.typed) and self.shared.typed[-1].style == "strong"

    def say(self, text: str, style: str = "dim", n: int = 0) -> None:
        """Add a line to the console and bring it into view; ``n``: number of the CONTROL message
        with the same content."""
        frame = self.shared.frame
        live = frame is not None and self.shared.can_control
        t_ns = frame.snapshot.t_end_ns if frame is not None and live else _LAST_NS
        if typed := self.shared.typed:
            t_ns = max(t_ns, typed[-1].t_ns)
        self.shared.typed = (*typed[-_CONSOLE:], Entry(t_ns, text, style, n))
        self.follow_end()
        self.redraw()


def _wait(frame: Frame) -> Finding | None:
    """Return the finding on the standstill at the cursor; None: there is none."""
    found = ordered(frame.snapshot.findings) if frame.snapshot.hang is not None else []
    return next((one for one in found if isinstance(one.facts, Stalled)), None)


def look_at(shared: Shared, frame: Frame | None) -> DebugPageState:
    """Return the page's state of stacks, source and console."""
    ended = shared.can_control and frame is not None and frame.finished
    free = frame is not None and frame.snapshot.control.mode == "running"
    return DebugPageState(
        shared.rank, {} if shared.stacks_held and free else shared.stacks, shared.stacks_ns,
        shared.typed,
        shared.can_control and not ended, ended, shared.you,
        frame.source if frame is not None else None, shared.frame_at, shared.every_frame,
        frame.output or () if frame is not None else (),
    )  # fmt: skip


def source_place(shared: Shared) -> Place | None:
    """Return the source place of the selected rank's frame; None: not known."""
    spots = _in_reach(shared)
    spot = spots[min(shared.frame_at, len(spots) - 1)] if spots else None
    return Place(spot.file, spot.line) if spot is not None and spot.file else None


def _in_reach(shared: Shared) -> list[Spot]:
    """Return the selected rank's frames, innermost first."""
    if shared.frame is None:
        return []
    stacks, _ = stacks_shown(shared.frame.snapshot, look_at(shared, shared.frame))
    return spots_in_reach(stacks.get(shared.rank, ()), shared.every_frame)
