"""Page 2, Pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.pipeline.ticks.cell import HELD_MODES, Ticks, TicksWant
from pardbg.render.draw.cells import Picture
from pardbg.render.pages.pipeline.held_panels import held_panels, hits
from pardbg.render.pages.pipeline.page import PipelinePageState, longest_ns, pipeline
from pardbg.render.pages.pipeline.tick_page import TickPageState, cell_at, tick_page
from pardbg.render.pages.pipeline.whatif import whatif
from pardbg.ui.engine.feed import Frame, Want
from pardbg.ui.screens.base import Page, Shared
from pardbg.ui.screens.debug import look_at, source_place

_CONSOLE: Final = 6
"""Minimum rows, edges included, of the console under the grid."""


_BY_TIME: Final = 13
"""Minimum rows under the grid for the same step by time."""


class PipelinePage(Page):
    """The planned and observed schedule by time or by tick, or the what-if pane."""

    name_ = "pipeline"
    twofold = True
    lacks = "No pipeline is known yet: its plan comes when it is built, its actions as they run."

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._whatif = False
        self._chosen: dict[bool, bool] = {}
        """Held or not -> ticks or not, as the user chose; by default by ticks while held."""
        self._cell: str | None = None
        """The selected action of the tick grid, on the selected rank."""
        self._was_by_tick = False

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        self.shared.console_rows = 0
        if self._whatif:
            view = frame.snapshot.pipeline
            coming = view is not None and view.last_complete is not None
            return whatif(frame.whatif, cells, rows, coming)
        by_tick = self._by_tick(frame)
        if by_tick != self._was_by_tick:
            self._was_by_tick, self.unit = by_tick, "tick" if by_tick else ""
        if by_tick and frame.ticks is not None and frame.ticks.grids:
            return _tick_page(self.shared, frame, frame.ticks, self._cell, cells, rows)
        both = self.shared.frame
        pair = (both.snapshot, both.other.snapshot) if both is not None and both.other else ()
        cell = frame.ticks.cell if frame.ticks is not None else None
        look = PipelinePageState(
            self.shared.rank, not frame.following, self._cell, cell,
            max(map(longest_ns, pair), default=0),
        )  # fmt: skip
        return pipeline(frame.snapshot, cells, rows, look, frame.schedule)

    def has_nothing(self, snapshot: Snapshot) -> bool:
        return snapshot.pipeline is None

    def _by_tick(self, frame: Frame) -> bool:
        held = frame.snapshot.control.mode in HELD_MODES
        return self._chosen.get(held, held)

    def want(self) -> Want:
        always = self._chosen.get(False, False) or self._cell is not None
        ticks = TicksWant(self.shared.rank, self._cell, always)
        source = source_place(self.shared) if self.shared.console_rows else None
        return Want(
            source=source, whatif=self._whatif, schedule=not self._whatif, ticks=ticks,
            pipeline_of=self.shared.rank,
        )  # fmt: skip

    def grid(self) -> bool:
        frame = self.shared.frame
        if frame is None or frame.snapshot.pipeline is None:
            return False
        self.by_ticks(not self._by_tick(frame), frame)
        self.redraw()
        return True

    def by_ticks(self, ticks: bool, frame: Frame) -> None:
        """Choose ticks or time."""
        self._chosen[frame.snapshot.control.mode in HELD_MODES] = ticks
        self._whatif = False

    def cell(self, by: int) -> bool:
        """Select the next action of the selected rank: in the order of the plan's ticks, or of
        time."""
        frame = self.shared.frame
        if frame is None or self._whatif:
            return False
        texts = list(places_of(frame, self._by_tick(frame)).get(self.shared.rank, ()))
        if not texts:
            return False
        newest = newest_of(frame, self._by_tick(frame), self.shared.rank, texts)
        if self._cell in texts:
            newest = min(max(texts.index(self._cell) + by, 0), len(texts) - 1)
        self._cell = texts[newest]
        self.redraw()
        return True

    def pick(self, index: int, x: int) -> None:
        """Select the clicked cell."""
        frame = self.shared.frame
        if frame is not None and frame.ticks is not None and self._by_tick(frame):
            look = TickPageState(self.shared.rank, self._cell)
            found = cell_at(frame.snapshot, frame.ticks, self.size.width, look, index, x)
            self._cell = found.action if found is not None else None
        super().pick(index, x)

    def move(self, by: int) -> None:
        """Select another rank, and the rank's action of the same tick or time, or the nearest."""
        frame, before = self.shared.frame, self.shared.rank
        self.shared.frame_at = 0
        super().move(by)
        if self._cell is not None and frame is not None:
            places = places_of(frame, self._by_tick(frame))
            old, new = places.get(before, {}), places.get(self.shared.rank, {})
            at = old.get(self._cell, 0)
            self._cell = min(new, key=lambda text: abs(new[text] - at), default=None)
            self.redraw()

    def detail(self, frame: Frame, cells: int, rows: int) -> tuple[str, Picture] | None:
        """Select a cell first if the page is by ticks: its facts are shown under the grid."""
        if frame.ticks is not None and self._by_tick(frame) and self._cell is None:
            self.cell(0)
            return None
        return super().detail(frame, cells, rows)

    def follow(self) -> None:
        """Go back to the newest step, without a selected cell."""
        self._cell = None
        super().follow()

    def turn(self, by: int) -> bool:
        """Show the previous or next pipeline; return False if there is at most one."""
        frame = self.shared.frame
        names = frame.snapshot.pipelines if frame else ()
        view = frame.snapshot.pipeline if frame else None
        if len(names) < 2 or view is None:
            return False
        self.shared.rank = names[(view.index + by) % len(names)].ranks[0]
        return True

    def other(self) -> bool:
        self._whatif = not self._whatif
        self.redraw()
        return True

    def ranks(self) -> list[int]:
        frame = self.shared.frame
        if frame is not None and frame.ticks is not None and self._by_tick(frame):
            return [row.rank for grid in frame.ticks.grids for row in grid.rows]
        view = frame.snapshot.pipeline if frame else None
        step = view.step or view.last_complete if view else None
        return [row.rank for row in step.ranks] if step else super().ranks()

    def time_step_ns(self, snapshot: Snapshot) -> int:
        """Return the time of about one column of the drawing, in ns."""
        view = snapshot.pipeline
        step = view.last_complete or view.step if view else None
        if step is None:
            return super().time_step_ns(snapshot)
        return max(1, (step.t1_ns - step.t0_ns) // max(20, self.size.width - 40))


def places_of(frame: Frame, by_tick: bool) -> dict[int, dict[str, int]]:
    """Return the tick of each rank's actions, or the time at which each began."""
    if by_tick:
        rows = [row for grid in frame.ticks.grids for row in grid.rows] if frame.ticks else []
        return {row.rank: {cell.action: cell.tick for cell in row.cells} for row in rows}
    view = frame.snapshot.pipeline
    step = view.step or view.last_complete if view is not None else None
    ranks = step.ranks if step is not None else ()
    return {row.rank: {span.text: span.t0_ns for span in row.actions} for row in ranks}


def newest_of(frame: Frame, by_tick: bool, rank: int, texts: Sequence[str]) -> int:
    """Return the action of the rank that ran last."""
    if not by_tick or frame.ticks is None:
        return len(texts) - 1
    rows = (row for grid in frame.ticks.grids for row in grid.rows if row.rank == rank)
    ran = {cell.action for row in rows for cell in row.cells if cell.span is not None}
    return max((at for at, text in enumerate(texts) if text in ran), default=0)


def _tick_page(
    shared: Shared, frame: Frame, ticks: Ticks, cell: str | None, cells: int, rows: int
) -> Picture:
    """Return the grid and, while ranks are held, the console under it."""
    look = TickPageState(shared.rank, cell, hits(frame.snapshot))
    if frame.snapshot.control.mode not in HELD_MODES:
        grid = tick_page(frame.snapshot, ticks, cells, rows, look)
        room = rows - len(grid.head) - len(grid.body) - len(grid.foot) - 1
        if room < _BY_TIME:
            return grid
        state = PipelinePageState(shared.rank, not frame.following, cell, ticks.cell)
        below = pipeline(frame.snapshot, cells, room, state, frame.schedule)
        lines = [*below.head, *below.body, *below.foot][:room]
        return replace(grid, foot=(*grid.foot, (), *lines))
    for upper in (rows - rows * 2 // 5, rows):  # a low grid leaves the console more
        grid = tick_page(frame.snapshot, ticks, cells, upper, look)
        used = len(grid.head) + len(grid.body) + len(grid.foot)
        if used <= upper:
            break
    if (room := rows - used - 1) < _CONSOLE:
        return grid
    shared.console_rows = room - 2
    shown = held_panels(frame.snapshot, look_at(shared, frame), shared.place, cells, room)
    return replace(grid, foot=(*grid.foot, (), *shown))
