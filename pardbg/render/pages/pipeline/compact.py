"""The newest complete step of the pipeline in a panel of another page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.pipeline.implied import ScheduleDetail
from pardbg.analysis.pipeline.values import PipelineRank, PipelineStep
from pardbg.render.draw.axis import BREAK_CELLS, Axis, gaps, ruler
from pardbg.render.draw.bars import rule
from pardbg.render.draw.cells import Line, Row, Segment, fit, left, line
from pardbg.render.pages.pipeline.schedule import (
    Density,
    duration_row,
    even,
    flight_row,
    plan_row,
    seen_row,
)

_GUTTER: Final = 8
_TIMED: Final = 4
"""Minimum cells of most boxes for showing their times."""
_LEAST: Final = 5
"""Minimum lines of the panel."""


_DENSITIES: Final = (
    *(Density(tall=tall, flight=1, gap=1) for tall in (3, 2, 1)),
    Density(tall=1, gap=1), Density(gap=1), Density(plan=0, gap=1), Density(plan=0),
)  # fmt: skip
PLAIN: Final = (Density(plan=0, flight=1, gap=1), Density(plan=0, flight=1), Density(plan=0))
"""Densities without plans, for few cells."""


def compact(snapshot: Snapshot, cells: int, rows: int, detail: ScheduleDetail | None) -> list[Line]:
    """Draw the last step that has ended on all ranks, its plan above the observed actions; empty if
    no pipeline step has ended, or with fewer rows than one rank needs."""
    view = snapshot.pipeline
    step = view.last_complete if view is not None else None
    if view is None or step is None or not step.ranks or rows < _LEAST:
        return []
    note = f"step {step.step}"
    if step.bubble_fraction is not None:
        note += f"   bubble {words.percent(step.bubble_fraction)}"
    if len(snapshot.pipelines) > 1:
        note = f"{view.index + 1} of {len(snapshot.pipelines)}   {note}"
    drawn, hidden = ended_step(step, cells, rows - 1, detail, _DENSITIES)
    note += f"   2 has {hidden} more" if hidden else ""
    return [rule("pipeline", cells, note), *drawn]


def ended_step(
    step: PipelineStep, cells: int, rows: int, detail: ScheduleDetail | None,
    densities: Sequence[Density] = PLAIN,
) -> tuple[list[Line], int]:  # fmt: skip
    """Draw a step's axis and ranks in at most ``rows`` lines; return them and the number of ranks
    left out."""
    axis, room = _axis(step, cells - _GUTTER), rows - 1
    fitting = [density for density in densities if density.fits(len(step.ranks), room)]
    density = fitting[0] if fitting else densities[-1]
    many = any(len(rank.stages) > 1 for rank in step.ranks)
    drawn = [row for rank in step.ranks for row in _rank(rank, step, axis, density, detail, many)]
    head = line(" " * _GUTTER, *ruler(axis).line())
    hidden = 0 if fitting else max(0, len(step.ranks) - room)
    return [fit(head, cells), *(fit(row, cells) for row in drawn[:room])], hidden


def _axis(step: PipelineStep, cells: int) -> Axis:
    spans = [(a.t0_ns, a.t1_ns) for r in step.ranks for a in r.actions if a.t1_ns is not None]
    breaks = gaps(spans, step.t1_ns)
    span = float(max(step.t1_ns - step.t0_ns - sum(end - begin for begin, end in breaks), 1))
    span *= cells / max(8, cells - BREAK_CELLS * len(breaks))
    return Axis(step.t0_ns, span * 1.005, cells, breaks)


def _rank(
    rank: PipelineRank, step: PipelineStep, axis: Axis, density: Density,
    detail: ScheduleDetail | None, many: bool,
) -> list[Line]:  # fmt: skip
    """Return a rank's lines: plan, boxes, microbatches in flight."""
    whole = Axis(axis.t0_ns, axis.span_ns, axis.cells)  # the plan knows no breaks
    stages = ",".join(map(str, rank.stages))
    names = [(f"r{rank.rank}", "strong"), (f"s{stages}"[: _GUTTER - 2], "dim")]
    boxes = detail.boxes.get(rank.rank, ()) if detail is not None else ()
    drawn: list[Row] = [plan_row(boxes, whole, many, pairs=rank.pairs)] if density.plan else []
    drawn.append(seen_row(rank, axis, step.t1_ns, many))
    wide = even(axis.x(a.t1_ns) - axis.x(a.t0_ns) for a in rank.actions if a.t1_ns is not None)
    drawn += [duration_row(rank, axis, step.t1_ns, words_in=wide > _TIMED and at == 0)
              for at in range(density.tall)]  # fmt: skip
    if density.flight:
        curve = detail.last_in_flight.get(rank.rank, ()) if detail is not None else ()
        drawn.append(flight_row(rank, curve, axis, step.t1_ns))
        names += [("", "")] * (len(drawn) - 1 - len(names)) + [("flight", "faint")]
    names += [("", "")] * (len(drawn) - len(names))
    lines = [line(Segment(left(f" {name}", _GUTTER), style), *row.line())
             for (name, style), row in zip(names, drawn, strict=False)]  # fmt: skip
    return [*lines, *[()] * density.gap]
