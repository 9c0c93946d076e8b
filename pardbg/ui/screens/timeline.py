"""Page 3, Timeline."""

from __future__ import annotations

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.answers.timeline import Lanes, LaneSpan, Spot
from pardbg.render.draw.cells import Picture
from pardbg.render.frame.panels import empty, no_match
from pardbg.render.pages.timeline import Window, around, columns, places, time_at, timeline
from pardbg.ui.engine.feed import Frame, TimelineWant, Want
from pardbg.ui.screens.base import Page, Shared
from pardbg.words import rank_named

_LEAST_NS, _MOST_NS = 1_000, 24 * 3600 * 1_000_000_000


class TimelinePage(Page):
    """Lanes of every rank, in a window that ends at the cursor."""

    name_ = "timeline"
    lacks = "A rank has lanes here as soon as it makes its first process group."

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._span_ns: int | None = None
        self._halved = 0  # as often as keys asked before the first span was known
        self._zoomed_at: Frame | None = None
        self._spot: Spot | None = None
        self._stay_ns: int | None = None
        """End of a live run's window while a box is selected: fixed, so that the box stays."""

    def want(self) -> Want:
        width, frame = columns(max(20, self.app.size.width)), self.shared.frame
        span_ns, end_ns = self._span_ns, None
        if self._stay_ns is not None and frame is not None and frame.following:
            end_ns = self._stay_ns
            span_ns = span_ns or frame.lanes_t1_ns - frame.lanes_t0_ns or None
        about = frame.waited[1] if frame is not None and frame.waited and self._spot else None
        alone = rank_named(self.contains)
        chosen = self.shared.rank if alone is None else alone
        ranks = around(
            super().ranks(), chosen, self.size.height, about.rank if about is not None else None
        )
        return Want(timeline=TimelineWant(span_ns, width, ranks, self._spot, end_ns, self._halved))

    def has_nothing(self, snapshot: Snapshot) -> bool:
        frame = self.shared.frame
        laid_out = frame is not None and frame.lanes_t1_ns > frame.lanes_t0_ns
        bare = laid_out and frame is not None and not any(map(any, frame.lanes.values()))
        return bare or super().has_nothing(snapshot)

    def _look_at(self, frame: Frame, spot: Spot | None) -> None:
        """Select a box; the window does not move while a box is selected."""
        self._spot = spot
        self.sections = ("collectives", "p2p") if spot is not None else ()  # what it waited for
        self._stay_ns = frame.lanes_t1_ns if spot is not None else None
        self.redraw()

    def draw(self, frame: Frame, cells: int, rows: int) -> Picture:
        if frame.lanes_t1_ns <= frame.lanes_t0_ns:  # the frame was made for another page
            return empty(cells, rows, "laying out what ran …")
        lanes = self._lanes(frame)
        if self.contains and not lanes:
            return no_match(cells, rows)
        spot, about = frame.waited or (None, None)
        about = about if spot == self._spot else None
        return timeline(
            frame.snapshot, lanes, _window(frame), cells, rows, self.shared.rank, self._spot, about
        )

    def _lanes(self, frame: Frame) -> Lanes:
        """Return the lanes that match the filter."""
        return _matching(frame.lanes, self.contains)

    # ---- the chosen box

    def cell(self, by: int) -> bool:
        """Select the next or previous box; at first the rank's longest wait in the window."""
        frame = self.shared.frame
        if frame is None:
            return False
        lanes, spot = self._lanes(frame), self._spot
        if spot is None or spot.span(lanes) is None:
            row = {name: spans for name, spans in lanes.get(self.shared.rank, {}).items() if spans}
            name = next((n for n in ("wait", "comm", *row) if n in row), None)
            if name is None:
                return False
            longest = max(row[name], key=lambda span: span.t1_ns - span.t0_ns)
            spot = Spot(self.shared.rank, name, longest.t0_ns)
        else:
            begins = [s.t0_ns for s in lanes[spot.rank][spot.lane]]
            span = spot.span(lanes)
            at = begins.index(span.t0_ns) + by if span is not None else 0
            at = min(max(at, 0), len(begins) - 1)
            spot = Spot(spot.rank, spot.lane, begins[at])
        self._look_at(frame, spot)
        return True

    def move(self, by: int) -> None:
        """Select another rank; with a box selected, the next lane's box at the same time."""
        frame, spot = self.shared.frame, self._spot
        if frame is None or spot is None:
            super().move(by)
            return
        rows = places(self._lanes(frame))
        at = rows.index((spot.rank, spot.lane)) if (spot.rank, spot.lane) in rows else 0
        self._choose(frame, rows[min(max(at + by, 0), len(rows) - 1)], spot.t0_ns)

    def pick(self, index: int, x: int) -> None:
        frame = self.shared.frame
        rows = places(self._lanes(frame)) if frame is not None else []
        if frame is not None and index < len(rows):
            self._choose(frame, rows[index], time_at(_window(frame), self.size.width, x))

    def _choose(self, frame: Frame, place: tuple[int, str], t_ns: int) -> None:
        """Select a lane's box at a time, or the nearest one."""
        self.shared.rank, lane = place
        spans = self._lanes(frame).get(place[0], {}).get(lane, ())

        def away(span: LaneSpan) -> int:
            return max(span.t0_ns - t_ns, t_ns - span.t1_ns, 0)

        near = min(spans, key=away, default=None)
        self._look_at(frame, Spot(place[0], lane, near.t0_ns) if near is not None else None)

    def follow(self) -> None:
        """Go back to the newest time, without a selected box."""
        self._spot, self._stay_ns, self.sections = None, None, ()
        super().follow()

    def detail(self, frame: Frame, cells: int, rows: int) -> tuple[str, Picture] | None:
        """Select a box first: its facts are under the lanes, not in a panel."""
        if self._spot is None and self.cell(0):
            return None
        return super().detail(frame, cells, rows)

    def zoom(self, by: int) -> bool:
        frame = self.shared.frame
        if frame is None:
            return True
        # An older frame has not answered the zoom before, or is of another page.
        waits = frame is self._zoomed_at or frame.lanes_t1_ns <= frame.lanes_t0_ns
        span = self._span_ns if waits else frame.lanes_t1_ns - frame.lanes_t0_ns
        self._zoomed_at = frame
        if by == 0:
            span = frame.snapshot.t_ns - frame.snapshot.t_begin_ns
        elif span is None:
            self._halved += by
            return True
        span = span if by == 0 else span // 2 if by > 0 else span * 2
        self._halved = 0
        self._span_ns = min(max(span, _LEAST_NS), _MOST_NS)
        if self._stay_ns is not None and self._spot is not None:  # it stays in sight
            self._stay_ns = min(max(self._spot.t0_ns + self._span_ns // 2, 0), frame.snapshot.t_ns)
        return True

    def time_step_ns(self, snapshot: Snapshot) -> int:
        frame = self.shared.frame
        if frame is None or frame.lanes_t1_ns <= frame.lanes_t0_ns:
            return super().time_step_ns(snapshot)
        return max(1, (frame.lanes_t1_ns - frame.lanes_t0_ns) // 40)


def _window(frame: Frame) -> Window:
    return Window(frame.lanes_t0_ns, frame.lanes_t1_ns)


def _matching(lanes: Lanes, contains: str) -> Lanes:
    """Return the lanes of the rank that the text names; else the lanes whose name contains the
    text; empty if there are none."""
    rank = rank_named(contains)
    if rank is not None or not contains:
        return {one: row for one, row in lanes.items() if rank in (None, one)}
    found = {
        one: {name: spans for name, spans in row.items() if contains in name}
        for one, row in lanes.items()
    }
    return found if any(any(row.values()) for row in found.values()) else {}
