"""Training steps as they would have lasted without the debugger's holds.

``base.steps`` takes out what each rank was stalled. In a pipeline ranks also wait for each other,
holds or not: there a held step lasts as long as its actions laid out again, and what its ranks did
before and after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.holds import unheld_ns, was_held
from pardbg.analysis.base.steps import LAST, StepRow, last_step_rows, step_rows
from pardbg.analysis.pipeline.layout import Layout, layouts
from pardbg.analysis.pipeline.observed import PipelineStep
from pardbg.analysis.pipeline.schedule import pipeline_step


def unheld_step_rows(view: View, last: int | None = LAST) -> tuple[StepRow, ...]:
    """The last steps that ended on every rank; all of the run for None."""
    rows = step_rows(view, last)
    if not rows or not was_held(view, view.begin_ns, view.end_ns):
        return rows
    number = None if last is None else last + 8
    ended = {
        rank: {s: (t0, t1) for s, t0, t1 in last_step_rows(view, process, number)}
        for rank, process in view.ranks.items()
    }
    return tuple(_unheld(view, row, ended) for row in rows)


def unheld_step_ns(view: View, rank: int, step: int, t0_ns: int, t1_ns: int) -> int:
    """How long a rank's step t0..t1 would have lasted without holds."""
    made = _pipeline_of(view, rank, step) if was_held(view, t0_ns, t1_ns) else None
    if made is None or not made.held_ns or not made.complete:
        return unheld_ns(view, rank, t0_ns, t1_ns)
    begin, end = made.t0_ns, made.t1_ns + made.held_ns
    before, after = (t0_ns, min(begin, t1_ns)), (max(end, t0_ns), t1_ns)
    around = sum(unheld_ns(view, rank, a, b) for a, b in (before, after) if b > a)
    return around + made.t1_ns - made.t0_ns


def _unheld(
    view: View, row: StepRow, ended: Mapping[int, Mapping[int, tuple[int, int]]]
) -> StepRow:
    spans = {rank: steps[row.step] for rank, steps in ended.items() if row.step in steps}
    if not any(was_held(view, t0, t1) for t0, t1 in spans.values()):
        return row
    longest = max(unheld_step_ns(view, rank, row.step, *span) for rank, span in spans.items())
    phases = dict(row.phases)
    made = [s for r in spans if (s := _pipeline_of(view, r, row.step)) and s.held_ns]
    if "pipeline" in phases and made:
        phases["pipeline"] = max(step.t1_ns - step.t0_ns for step in made)
    return replace(row, duration_ns=longest, phases=phases)


def _pipeline_of(view: View, rank: int, step: int) -> PipelineStep | None:
    layout: Layout | None = next((one for one in layouts(view) if rank in one.ranks), None)
    return None if layout is None else pipeline_step(view, layout, step)
