"""The time bar: the cursor in the run, and marks of the run's events."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.render.draw.cells import Line, Row, Segment, clip, fit, line, line_width
from pardbg.render.draw.signs import SIGN
from pardbg.session.navigation.marks import Mark, MarkKind

SHAPES: Final[dict[MarkKind, tuple[str, str, str]]] = {
    "step": ("┴", "dim", "step end"),
    "pause": ("‖", "held", "pause"),
    "drop": ("▒", "bad", "gap"),
    "restart": ("↻", "warn", "restart"),
    "info": (*SIGN["info"], "note"),
    "warning": (*SIGN["warning"], "warning"),
    "error": (*SIGN["error"], "error"),
    "bookmark": ("◆", "strong", "bookmark"),
}
"""Kind of mark -> (shape, style, name in the legend); the later kind wins a cell."""
_ORDER: Final = tuple(SHAPES)
_DENSE: Final = 0.5
"""Step ends are drawn if they leave at least half of the bar free."""


@dataclass(frozen=True, slots=True)
class Playing:
    playing: bool
    speed: float
    replay: bool
    """Whether a recording is shown; False: an earlier time of a live run."""
    begin_ns: int | None = None
    end_ns: int | None = None
    """End of the whole session; None: the snapshot's."""
    marks: Sequence[Mark] = ()
    unit: str = "step"
    """Unit that , and . move by."""
    loaded: float = 1.0
    awaited_ns: int | None = None
    """The requested moment that is still being read."""
    active: tuple[int, int] | None = None
    """First and last moment at which ranks did anything: what lies outside is drawn short."""
    searched: bool = True
    """False: more findings may be marked."""

    def bounds(self, snapshot: Snapshot) -> tuple[int, int]:
        begin = snapshot.t_begin_ns if self.begin_ns is None else self.begin_ns
        end = snapshot.t_end_ns if self.end_ns is None else self.end_ns
        return begin, max(end, begin + 1)


_EDGE: Final = 24
"""Inverse of the maximum share of cells of a start-up or a wind-down."""


@dataclass(frozen=True, slots=True)
class Track:
    """The bar's time axis; long start-up and wind-down take few cells."""

    times: tuple[int, ...]
    """Times at which the scale changes: begin, first activity, last activity, end."""
    cells: tuple[int, ...]
    """The cell of each of ``times``."""

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Return the cells of start-up and wind-down."""
        at = self.cells
        return ((at[0], at[1]), (at[-2], at[-1])) if len(at) > 2 else ()

    @staticmethod
    def of(begin: int, end: int, active: tuple[int, int] | None, room: int) -> Track:
        """Return a track of ``room`` cells from ``begin`` to ``end``."""
        last = room - 1
        if active is None or not begin <= active[0] < active[1] <= end:
            return Track((begin, end), (0, last))
        edge = max(1, room // _EDGE)
        share = max(1, (end - begin)) / max(1, last)
        first = min(edge, round((active[0] - begin) / share))
        behind = last - min(edge, round((end - active[1]) / share))
        return Track((begin, *active, end), (0, first, behind, last))

    def cell(self, t_ns: float) -> int:
        """Return the cell of a time, clamped to the ends."""
        return _between(t_ns, self.times, self.cells)

    def time(self, cell: int) -> int:
        """Return the time in the middle of a cell."""
        return _between(cell, self.cells, self.times)


def _between(x: float, xs: Sequence[int], ys: Sequence[int]) -> int:
    """Return the point at ``x`` on the line through the points, extended beyond both ends."""
    at = min(max(bisect_right(xs, x) - 1, 0), len(xs) - 2)
    return round(ys[at] + (x - xs[at]) * (ys[at + 1] - ys[at]) / max(1, xs[at + 1] - xs[at]))


def time_bar(snapshot: Snapshot, state: Playing, cells: int) -> Line:
    """Return the time bar in one line: ``▶ play 2× 0:12 ━━━━━●──────▲─── 0:58 step 34``."""
    start, end = _ends(snapshot, state)
    room = cells - line_width(start) - line_width(end)
    track = _track_of(snapshot, state, room)
    if track is None:
        return fit(start, cells)
    begin, last = state.bounds(snapshot)
    at_ns = snapshot.t_ns if state.awaited_ns is None else state.awaited_ns
    return line(*start, *_track(state.marks, min(max(at_ns, begin), last), track, room), *end)


def time_at(snapshot: Snapshot, state: Playing, cells: int, x: int) -> int | None:
    """Return the time at column ``x`` of the bar, ns; None outside the bar's track."""
    start, end = _ends(snapshot, state)
    room, cell = cells - line_width(start) - line_width(end), x - line_width(start)
    track = _track_of(snapshot, state, room)
    return track.time(cell) if track is not None and 0 <= cell < room else None


def _track_of(snapshot: Snapshot, state: Playing, room: int) -> Track | None:
    """Return the track of the bar; None if there is no room for one."""
    return None if room < 10 else Track.of(*state.bounds(snapshot), state.active, room)


def _ends(snapshot: Snapshot, state: Playing) -> tuple[Line, Line]:
    """Return the texts before and after the track."""
    begin, last = state.bounds(snapshot)
    total = last - begin
    at_ns = snapshot.t_ns if state.awaited_ns is None else state.awaited_ns
    here = min(max(at_ns - begin, 0), total)
    fine = 1e7 if total < 120e9 else 1e9
    start = line(" ", *_sign(state), Segment(f" {words.offset(here, 1e7)} ", "strong"))
    step = f"  step {snapshot.step}" if snapshot.step is not None else ""
    if state.awaited_ns is not None:
        step = f"  shown: {words.offset(snapshot.t_ns - begin, fine)}"
    end = line(Segment(f" {words.offset(total, fine)}", "dim"), Segment(step, "strong"), " ")
    return start, end


def legend(snapshot: Snapshot, state: Playing, cells: int) -> Line:
    """Return the bar's second line: the meaning of its marks, and the unit that , and . move by."""
    begin, last = state.bounds(snapshot)
    kinds = {mark.kind for mark in state.marks}
    start: list[Segment | str] = [Segment(" whole run: " if kinds else " ", "dim")]
    for kind, (shape, style, text) in SHAPES.items():
        if kind in kinds:
            count = sum(mark.kind == kind for mark in state.marks)
            start += [Segment(shape, style), Segment(f" {words.plural(count, text)}  ", "dim")]
    if not state.searched:
        start.append(Segment("so far, searching …", "dim"))
    near = _near(snapshot, state, (last - begin) // 100)
    end = line(
        Segment(", .", "key"), Segment(f" by {state.unit}", ""), Segment(" (u changes) ", "dim")
    )
    room = cells - line_width(end) - 1
    shown = line(*start)
    if near is not None and room - line_width(shown) > 16:
        shape, style, _ = SHAPES[near.kind]
        note = clip(near.text.splitlines()[0], room - line_width(shown) - 4)
        shown = line(*shown, " ", Segment(shape, style), Segment(f" {note}"))
    return line(*fit(shown, room), " ", *end)


def _near(snapshot: Snapshot, state: Playing, reach_ns: int) -> Mark | None:
    """Return the labelled mark next to the cursor, if one is near."""
    labelled = [m for m in state.marks if m.text and m.t0_ns - reach_ns <= snapshot.t_ns
            and snapshot.t_ns <= m.t1_ns + reach_ns]  # fmt: skip
    return min(labelled, key=lambda m: abs(m.t0_ns - snapshot.t_ns), default=None)


def _sign(state: Playing) -> Line:
    if state.loaded < 1:
        word = "wait" if state.awaited_ns is not None else "loaded"
        return line(Segment(f"… {word} {words.percent(state.loaded, 0)}", "warn"))
    if not state.replay:
        return line(Segment("◂ look back", "held"))
    arrow = "◀ back" if state.speed < 0 else "▶ play"
    sign = arrow if state.playing else "‖ stop"
    style = "accent" if state.playing else "held"
    return line(Segment(sign, style), Segment(f" {abs(state.speed):g}×".ljust(6), "dim"))


def _track(marks: Sequence[Mark], at_ns: int, track: Track, room: int) -> Line:
    row = Row(room, "─", "rule")
    knob = min(room - 1, track.cell(at_ns))
    row.fill(0, knob, "━", "accent")
    for first, last in track.edges:
        row.fill(first, last, "╌", "accent" if last <= knob else "rule")
    steps = sum(mark.kind == "step" for mark in marks)
    for mark in sorted(marks, key=lambda mark: _ORDER.index(mark.kind)):
        if mark.kind == "step" and steps > room * _DENSE:
            continue
        where, until = track.cell(mark.t0_ns), track.cell(mark.t1_ns)
        shape, style, _ = SHAPES[mark.kind]
        if 0 <= where < room:
            row.fill(where, max(until, where) + 1, shape, style)
    row.put(knob, "●", "strong")
    return row.line()
