"""Training steps as they would have lasted without the debugger's holds.

``base.steps`` takes out what each rank was stalled. In a pipeline ranks also wait for each other,
holds or not: there a held step lasts as long as its actions laid out again, and what its ranks did
before and after.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View, per_store, per_view
from pardbg.analysis.base.holds import stalls, unheld_ns, was_held
from pardbg.analysis.base.intervals import Interval, clip, intersect, subtract, total, union
from pardbg.analysis.base.steps import LAST, StepRow, last_step_rows, step_rows
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.comm.overlap import Ops, ops_by_rank
from pardbg.analysis.pipeline.dependencies import COMPUTE
from pardbg.analysis.pipeline.layout import Layout, layouts
from pardbg.analysis.pipeline.observed import PipelineStep
from pardbg.analysis.pipeline.schedule import pipeline_step
from pardbg.store.process import Process
from pardbg_agent import wire


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


_ASYNC: Final = int(wire.Flag.ASYNC)

Split = tuple[float, float, float]
"""(compute, wait, communication) as fractions of the step; the rest is neither."""
_COMPUTE_PHASES = ("forward", "backward", "optimizer")


def last_step_split(
    view: View, rank: int, process: Process, pipeline: PipelineStep | None
) -> Split | None:
    """The newest step that ended; in a pipeline its newest complete schedule step."""
    if pipeline is not None:
        for row in pipeline.ranks:
            length = pipeline.t1_ns - pipeline.t0_ns
            if row.rank == rank and length > 0:
                idle = row.idle_ns
                waiting = idle["warmup"] + idle["dependency"] + idle["cooldown"]
                return row.busy_ns / length, waiting / length, idle["communication"] / length
    table, visible = view.rows(process, "step")
    if not visible:
        return None
    begin = int(table.col("t0_ns")[visible - 1])
    end = int(table.col("t1_ns")[visible - 1])
    return _split(view, rank, process, (begin, end))


def _rows_seen(view: View, rank: int, process: Process, step: Interval) -> Hashable:
    return process.proc, step, tuple(view.visible(process, n) for n in ("done", "wait"))


@per_store(_rows_seen)
def _split(view: View, rank: int, process: Process, step: Interval) -> Split | None:
    held = stalls(view, rank, *step)
    length = step[1] - step[0] - total(held)
    if length <= 0:
        return None
    compute = _compute(view, process, step)
    waiting, moving = _ops(view, rank, step)
    exposed = _exposed(view, process, step, waiting + moving)
    # Where ops overlap, a rank that is still to come decides: the others wait.
    wait = intersect(exposed, waiting)
    comm = subtract(intersect(exposed, moving), wait)
    comm += subtract(_waits(view, process, step), [*wait, *comm])
    wait, comm = subtract(wait, held), subtract(comm, held)
    alone = subtract(compute, [*wait, *comm, *held])
    return total(alone) / length, total(union(wait)) / length, total(union(comm)) / length


def _compute(view: View, process: Process, step: Interval) -> list[Interval]:
    actions = _spans(view, process, "action", step, COMPUTE)
    if actions:
        return actions + _spans(view, process, "phase", step, ("optimizer",))
    return _spans(view, process, "phase", step, _COMPUTE_PHASES)


def _spans(
    view: View, process: Process, name: str, window: Interval, names: tuple[str, ...] | None
) -> list[Interval]:
    table, visible = view.rows(process, name)
    lo = int(np.searchsorted(table.when[:visible], window[0], side="left"))
    columns = (table.col(c)[lo:visible].tolist() for c in ("name_id", "t0_ns", "t1_ns"))
    found = [
        (t0, t1)
        for name_id, t0, t1 in zip(*columns, strict=True)
        if t0 < window[1] and (names is None or process.name(name_id) in names)
    ]
    return union(clip(found, *window))


def _waits(view: View, process: Process, step: Interval) -> list[Interval]:
    return _spans(view, process, "wait", step, None)


@per_view
def _ops_by_rank(view: View) -> Ops:
    return ops_by_rank(collectives(view))


def _ops(view: View, rank: int, step: Interval) -> tuple[list[Interval], list[Interval]]:
    """Stretches in which an op of this rank was under way: before and after the last arrival."""
    own = [op for op in _ops_by_rank(view).get(rank, ()) if op[2] > step[0] and op[0] < step[1]]
    waiting = [(issued, last) for issued, last, _ in own]
    moving = [(last, completed) for _, last, completed in own]
    return clip(waiting, *step), clip(moving, *step)


def _exposed(
    view: View, process: Process, step: Interval, under_way: list[Interval]
) -> list[Interval]:
    """When communication held this rank up: host waits, synchronous ops, and the end of a backward
    after its last op was issued (DDP waits for its buckets there, in C++, unseen)."""
    found = _waits(view, process, step)
    table, visible = view.rows(process, "issue")
    lo = int(np.searchsorted(table.when[:visible], step[0], side="left"))
    columns = (table.col(c)[lo:visible].tolist() for c in ("t0_ns", "t1_ns", "flags"))
    issued = [row for row in zip(*columns, strict=True) if row[0] < step[1]]
    found += [(t0, t1) for t0, t1, flags in issued if not flags & _ASYNC]
    for begin, end in _spans(view, process, "phase", step, ("backward",)):
        inside = [t1 for t0, t1, _ in issued if begin <= t0 <= end]
        if inside:
            found += clip(under_way, max(inside), end)
    return union(clip(found, *step))
