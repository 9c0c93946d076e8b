"""The time bar of a recording: play state, where in the run, and what happened when."""

from __future__ import annotations

from dataclasses import dataclass

from pardbg.analysis.model import Snapshot
from pardbg.render import words
from pardbg.render.cells import Line, Row, Run, fit, line, line_width

_EVENT_STYLE = {"error": "bad", "warning": "warn", "info": "dim"}


@dataclass(frozen=True, slots=True)
class Playing:
    playing: bool
    speed: float
    replay: bool
    """False: a look back in a live run."""


def time_bar(snapshot: Snapshot, state: Playing, cells: int) -> Line:
    """One line: ``▶ 2×  0:12 ━━━━━●──────⚠─── 0:58  step 34``."""
    total = max(1, snapshot.t_end_ns - snapshot.t_begin_ns)
    here = min(max(snapshot.t_ns - snapshot.t_begin_ns, 0), total)
    fine = 1e7 if total < 120e9 else 1e9
    arrow = "◀ back" if state.speed < 0 else "▶ play"
    sign = (arrow if state.playing else "‖ stop") if state.replay else "◂ look back"
    speed = f" {abs(state.speed):g}×" if state.replay else ""
    start = line(
        " ", Run(sign, "accent" if state.playing else "held"), Run(f"{speed:<6}", "dim"),
        Run(f" {words.offset(here, fine)} ", "strong"),
    )  # fmt: skip
    step = f"  step {snapshot.step}" if snapshot.step is not None else ""
    end = line(Run(f" {words.offset(total, fine)}", "dim"), Run(step, "strong"), " ")
    room = cells - line_width(start) - line_width(end)
    if room < 10:
        return fit(start, cells)
    return line(*start, *_track(snapshot, here / total, total, room), *end)


def _track(snapshot: Snapshot, at: float, total: int, room: int) -> Line:
    row = Row(room, "─", "rule")
    knob = min(room - 1, round(at * (room - 1)))
    row.fill(0, knob, "━", "accent")
    for t_ns, text in snapshot.control.log:
        where = round((t_ns - snapshot.t_begin_ns) / total * (room - 1))
        if "held" in text or "pause" in text:
            row.put(where, "╵", "held")
    for finding in snapshot.findings:
        where = round((finding.t_ns - snapshot.t_begin_ns) / total * (room - 1))
        if 0 <= where < room:
            row.put(where, "▲", _EVENT_STYLE[finding.severity])
    row.put(knob, "●", "strong")
    return row.line()
