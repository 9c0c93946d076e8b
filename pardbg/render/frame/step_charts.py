"""A run's course over its steps: step time and loss on one axis, and the phases of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Final

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.pipeline.values import Cause
from pardbg.render.draw.bars import GAP, Bar, abreast, bars, rule, shares
from pardbg.render.draw.cells import (
    Line,
    Segment,
    clean,
    clip,
    fit,
    line,
    overlay,
    plain,
    right,
    spread,
    width,
)
from pardbg.render.draw.plots import EVENT, by_step
from pardbg.render.draw.signs import SIGN
from pardbg.render.frame.host_panel import machine

_LABEL: Final = 8
"""Cells of the vertical labels of both charts, so that equal steps are above each other."""
SIDE_CELLS: Final = 42
"""Cells of the phases and the machine beside the charts."""
_TWO_CHARTS: Final = 13
"""Minimum number of rows for two charts above each other."""
_LEAST_HOST: Final = 3
"""Minimum lines of the machine panel, its rule included."""
_MOST_PHASES: Final = 4
"""Maximum number of the program's own phases with a bar; further ones are in other."""
_OF_SCHEDULE: Final = ("forward", "backward", "waiting", "under way")
"""Parts of a pipeline's step, in order; the rest of the step is other."""
_OF_ACTION: Final = {"F": "forward", "B": "backward", "I": "backward", "W": "backward"}
_OF_CAUSE: Final[Mapping[Cause, str]] = {
    "warmup": "waiting", "dependency": "waiting", "cooldown": "waiting",
    "communication": "under way",
}  # fmt: skip
_STYLES: Final = {"forward": "plan.F", "backward": "plan.B", "waiting": "waiting",
                  "under way": "moving", "other": "dim"}  # fmt: skip
_PHASES: Final[tuple[str, ...]] = ("data", "forward", "backward", "pipeline", "optimizer")


@dataclass(frozen=True, slots=True)
class Ahead:
    """Step times and losses of a whole recording."""

    times: tuple[tuple[int, int], ...]
    """(step, ns)"""
    losses: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Event:
    """A finding with the position of its begin on the axis of steps."""

    place: float
    """6.5 is the middle of step 6."""
    finding: Finding


def _ahead(
    shown: Sequence[tuple[int, float]], known: Sequence[tuple[int, float]]
) -> list[tuple[int, float]]:
    """Return points after the last shown one, as many as are on the screen, or a few."""
    last = shown[-1][0] if shown else -1
    return [point for point in known if point[0] > last][: max(16, len(shown))]


@dataclass(frozen=True, slots=True)
class _Curve:
    """Data of a chart over the steps."""

    title: str
    said: tuple[str, ...]
    """Texts to show beside the newest value, from long to short."""
    newest: str
    style: str
    values: Sequence[tuple[int, float]]
    later: Sequence[tuple[int, float]]
    """Points of a recording that are after the cursor."""
    text: Callable[[float], str]
    level: float | None = None

    def draw(
        self, size: int, rows: int, axis: tuple[int, int], bare: bool = False,
        marks: Sequence[tuple[float, str]] = (),
    ) -> list[Line]:  # fmt: skip
        """Return the chart under its name and newest value; empty if it does not fit. ``marks``:
        places and styles of vertical lines."""
        chart = by_step(self.values, size, rows - 1, self.style, self.text, self.level, self.later,
                        axis, bare, marks)  # fmt: skip
        title, newest = f"  {self.title}  ", f"{self.newest} "
        room = size - width(title) - width(newest)
        said = next((text for text in self.said if width(text) <= room), "")
        end = line(Segment(said, "dim"), Segment(newest, self.style))
        head = fit(spread(line(Segment(title, "dim")), end, size), size)
        return [head, *chart] if chart else []


def step_charts(
    snapshot: Snapshot, cells: int, height: int, ahead: Ahead | None,
    beside: Sequence[Line] = (), beside_cells: int = 0, events: Sequence[Event] = (),
) -> list[Line]:  # fmt: skip
    """Draw step time above loss on one axis, or beside it if rows are few, with a vertical line in
    both at each event's begin; ``beside`` the charts, with their rule, lines that are
    ``beside_cells`` wide."""
    curves = _curves(snapshot, ahead)
    if not curves:
        return []
    size = cells - 2 - (beside_cells + GAP if beside else 0)
    steps = [step for curve in curves for step, _ in (*curve.values, *curve.later)]
    axis = min(steps), max(steps)
    each = {int(e.place): e for e in reversed(events) if axis[0] <= e.place <= axis[1] + 1}
    here = [(each[step], *_look(each[step], snapshot.t_ns)) for step in sorted(each)]
    marks = [(event.place, style) for event, _, style in here]
    if len(curves) > 1 and height < _TWO_CHARTS:
        halves = [curve.draw(size // 2 - 1, height, axis, marks=marks) for curve in curves]
        drawn = abreast([(half, size // 2 - 1) for half in halves if half], 0)
    else:
        upper = curves[0].draw(size, height // 2, axis, True, marks) if len(curves) > 1 else []
        drawn = [*upper, *curves[-1].draw(size, height - len(upper), axis, marks=marks)]
    drawn = _named(drawn, size, here)
    if not drawn:
        return []
    shown, known = len(snapshot.steps), len(ahead.times) if ahead else 0
    note = f"{shown} of {words.plural(known, 'step')}" if known > shown else ""
    parts = [([rule("step time and loss", size, note), *drawn], size)]
    parts += [([*beside][: len(parts[0][0])], beside_cells)] if beside else []
    return [*abreast(parts), ()]


def _look(event: Event, t_ns: int) -> tuple[str, str]:
    """Return an event's sign and style; dim if the event is after the cursor."""
    sign, style = SIGN[event.finding.severity]
    return sign, "faint" if (event.finding.first_ns or event.finding.t_ns) > t_ns else style


def _named(
    drawn: Sequence[Line], size: int, events: Sequence[tuple[Event, str, str]]
) -> list[Line]:
    """Return the charts with the events' names beside the lines of the first chart, if there is
    room above the values."""
    lines_ = list(drawn)
    if not events:
        return lines_
    columns = sorted({x for row in drawn for x, sign in enumerate(plain(row)) if sign == EVENT})
    if len(columns) not in (len(events), 2 * len(events)):
        return lines_  # two of them stand in one column
    for (event, sign, style), x in zip(events, columns, strict=False):
        whose = event.finding.culprits
        name = f" {sign} {clean(event.finding.kind)}" + f" r{words.rank_set(whose)}" * bool(whose)
        for y, row in enumerate(lines_[1:-1], 1):
            under = plain(row)[x + 1 : x + 2 + len(name)]
            if x + 2 + len(name) <= size and not under.strip():
                lines_[y] = overlay(row, x + 1, name, style)
                break
    return lines_


def side(snapshot: Snapshot, rank: int | None, height: int) -> list[Line]:
    """Draw the phases of a step above the machine of ``rank``, as far as it fits, in SIDE_CELLS."""
    drawn = phases(snapshot, SIDE_CELLS)
    host = machine(snapshot, rank, SIDE_CELLS)[: max(0, height - len(drawn))] if drawn else []
    return [*drawn, (), *host] if len(host) > _LEAST_HOST else drawn


def phases(snapshot: Snapshot, cells: int) -> list[Line]:
    """Draw the shares of the newest step, under a rule; empty if they are not known."""
    rows = _phases(snapshot)
    if not rows:
        return []
    head = rule("where a step goes", cells, f"step {snapshot.steps[-1].step}, mean")
    waits = [rank.wait_fraction for rank in snapshot.ranks if rank.wait_fraction is not None]
    within = []  # of a pipeline's step it is one of the parts
    if waits and all(row.label != "waiting" for row in rows):
        share = words.percent(fmean(waits), 0)
        within = [
            spread((Segment("of it waiting for ranks", "dim"),), (Segment(share),), cells - 2)
        ]
    return [head, *(line(" ", row) for row in (*bars(rows, cells - 2), *within))]


def _curves(snapshot: Snapshot, ahead: Ahead | None) -> list[_Curve]:
    """Return the curves of step time and loss, as far as known."""
    times = [(row.step, row.duration_ns) for row in snapshot.steps]
    losses = snapshot.loss_history
    middle = median(value for _, value in times) if times else None
    later = _ahead(times, ahead.times if ahead else ())
    least, most = (of((ns for _, ns in (*times, *later)), default=0) for of in (min, max))
    source = snapshot.loss_source or "backward"
    said = f"{words.duration(middle)}   "
    medians = (f"median of {len(times)}: {said}", f"median {said}") if times else ()
    curves = [
        _Curve("step time", medians,
               words.duration(times[-1][1]) if times else "to come", "spark", times,
               later, partial(_time_text, least_ns=least, most_ns=most), middle),
        _Curve("loss" if source == "backward" else f"loss, {source}", (),
               _course(losses) if losses else "to come", "loss", losses,
               _ahead(losses, ahead.losses if ahead else ()), _loss_text),
    ]  # fmt: skip
    return [curve for curve in curves if curve.values or curve.later]


def _time_text(ns: float, least_ns: float, most_ns: float) -> str:
    """Return a tick's text, in the common unit of these two times."""
    return right(words.offset(ns, (most_ns - least_ns or most_ns) / 10, most_ns), _LABEL)


def _loss_text(loss: float) -> str:
    return right(words.number(loss), _LABEL)


def _course(losses: Sequence[tuple[int, float]]) -> str:
    """Return text such as ``5.746 → NaN``."""
    return " → ".join(words.number(value) for _, value in (losses[0], losses[-1]))


def _phases(snapshot: Snapshot) -> list[Bar]:
    if not snapshot.steps:
        return []
    last = snapshot.steps[-1]
    phases = dict(last.phases)
    order = [name for name in _PHASES if name in phases]
    order += sorted(set(phases) - set(order))[:_MOST_PHASES]
    outside = sum(phases[name] for name in order if name != "pipeline")
    if inside := _schedule(snapshot, last.step, last.duration_ns - outside):
        order = [*inside, *(name for name in order if name != "pipeline")]
        phases |= inside
    rest = last.duration_ns - sum(phases[name] for name in order)
    if order and rest > 0:
        order, phases = [*order, "other"], {**phases, "other": rest}
    total = max(sum(phases[name] for name in order), 1)
    largest = max([phases[name] for name in order], default=0) or 1
    hundredths = shares([phases[name] / total for name in order], 100)  # they sum to 100
    return [
        Bar(
            clip(clean(name), 12), phases[name] / largest,
            f"{words.duration(phases[name])} {words.percent(part / 100, 0):>4}",
            _STYLES.get(name, "compute"),
        )
        for name, part in zip(order, hundredths, strict=True)
    ]  # fmt: skip


def _schedule(snapshot: Snapshot, step: int, room_ns: int) -> dict[str, int]:
    """Return the parts of the schedule's time in a step, as means over ranks; empty if they are not
    known for this step, or take more than ``room_ns``."""
    pipeline = snapshot.pipeline.last_complete if snapshot.pipeline is not None else None
    if pipeline is None or pipeline.step != step or len(pipeline.ranks) < len(snapshot.ranks):
        return {}
    found = dict.fromkeys(_OF_SCHEDULE, 0)
    for rank in pipeline.ranks:
        for action in rank.actions:
            name = _OF_ACTION.get(action.kind)
            if name and action.t1_ns is not None:
                found[name] += action.t1_ns - action.t0_ns
        for cause, ns in rank.idle_ns.items():
            if cause in _OF_CAUSE:
                found[_OF_CAUSE[cause]] += ns
    means = {name: round(ns / len(pipeline.ranks)) for name, ns in found.items() if ns}
    return means if sum(means.values()) <= room_ns else {}
