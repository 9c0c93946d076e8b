"""The time bar: where in the run the screens look, and what happened when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pardbg import words
from pardbg.analysis.base.values import Snapshot
from pardbg.render.draw.cells import Line, Row, Segment, clip, fit, line, line_width
from pardbg.render.draw.severity import SIGN
from pardbg.session.navigation.marks import Mark, MarkKind

SHAPES: Final[dict[MarkKind, tuple[str, str, str]]] = {
    "step": ("┴", "dim", "step ends"),
    "pause": ("‖", "held", "held"),
    "drop": ("▒", "bad", "records lost"),
    "restart": ("↻", "warn", "restart"),
    "info": (*SIGN["info"], "note"),
    "warning": (*SIGN["warning"], "warning"),
    "error": (*SIGN["error"], "error"),
    "bookmark": ("◆", "strong", "bookmark"),
}
"""Kind -> (shape, style, what the legend calls it); the later one wins a cell."""
_ORDER: Final = tuple(SHAPES)
_DENSE: Final = 0.5
"""Step ends are drawn while they leave at least half of the bar free."""


@dataclass(frozen=True, slots=True)
class Playing:
    playing: bool
    speed: float
    replay: bool
    """False: a look back in a live run."""
    begin_ns: int | None = None
    end_ns: int | None = None
    """The whole session; None: what the snapshot says."""
    marks: Sequence[Mark] = ()
    unit: str = "step"
    """What , and . move by."""
    loaded: float = 1.0
    awaited_ns: int | None = None
    """The moment that was asked for and is still being read."""

    def bounds(self, snapshot: Snapshot) -> tuple[int, int]:
        begin = snapshot.t_begin_ns if self.begin_ns is None else self.begin_ns
        end = snapshot.t_end_ns if self.end_ns is None else self.end_ns
        return begin, max(end, begin + 1)


def time_bar(snapshot: Snapshot, state: Playing, cells: int) -> Line:
    """One line: ``▶ play 2×  0:12 ━━━━━●──────▲─── 0:58  step 34``."""
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
    room = cells - line_width(start) - line_width(end)
    if room < 10:
        return fit(start, cells)
    return line(*start, *_track(state.marks, here / total, begin, total, room), *end)


def legend(snapshot: Snapshot, state: Playing, cells: int) -> Line:
    """What the shapes mean, and what , and . move by: the bar's second line."""
    begin, last = state.bounds(snapshot)
    kinds = {mark.kind for mark in state.marks}
    start: list[Segment | str] = [" "]
    for kind, (shape, style, text) in SHAPES.items():
        if kind in kinds:
            count = sum(mark.kind == kind for mark in state.marks)
            start += [Segment(shape, style), Segment(f" {count} {text}  ", "dim")]
    near = _near(snapshot, state, (last - begin) // 100)
    end = line(
        Segment(", .", "key"), Segment(f" by {state.unit}", ""), Segment(" (u changes) ", "dim")
    )
    room = cells - line_width(end) - 1
    shown = line(*start)
    if near is not None and room - line_width(shown) > 16:
        shape, style, _ = SHAPES[near.kind]
        said = clip(near.text.splitlines()[0], room - line_width(shown) - 4)
        shown = line(*shown, " ", Segment(shape, style), Segment(f" {said}"))
    return line(*fit(shown, room), " ", *end)


def _near(snapshot: Snapshot, state: Playing, reach_ns: int) -> Mark | None:
    """The mark with words nearest to the cursor, if it is near."""
    said = [m for m in state.marks if m.text and m.t0_ns - reach_ns <= snapshot.t_ns
            and snapshot.t_ns <= m.t1_ns + reach_ns]  # fmt: skip
    return min(said, key=lambda m: abs(m.t0_ns - snapshot.t_ns), default=None)


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


def _track(marks: Sequence[Mark], at: float, begin: int, total: int, room: int) -> Line:
    row = Row(room, "─", "rule")
    knob = min(room - 1, round(at * (room - 1)))
    row.fill(0, knob, "━", "accent")
    steps = sum(mark.kind == "step" for mark in marks)
    for mark in sorted(marks, key=lambda mark: _ORDER.index(mark.kind)):
        if mark.kind == "step" and steps > room * _DENSE:
            continue
        where = round((mark.t0_ns - begin) / total * (room - 1))
        until = round((mark.t1_ns - begin) / total * (room - 1))
        shape, style, _ = SHAPES[mark.kind]
        if 0 <= where < room:
            row.fill(where, max(until, where) + 1, shape, style)
    row.put(knob, "●", "strong")
    return row.line()
