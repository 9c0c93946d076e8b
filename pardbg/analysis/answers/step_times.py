"""Durations of training steps as they would have been without the debugger's holds.

``base.steps`` subtracts the time that each rank was stalled. In a pipeline ranks also wait for each
other, holds or not: there a held step lasts as long as its actions laid out again, plus the ranks'
time before and after. ``rank_courses``: shares of compute, waits and communication in each step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from pardbg.analysis.base.asof import View, per_store, per_view
from pardbg.analysis.base.holds import stalls, unheld_ns, was_held
from pardbg.analysis.base.intervals import Interval, intersect, subtract, total, union
from pardbg.analysis.base.spans import read_ahead, stretches
from pardbg.analysis.base.steps import LAST, StepRow, last_step_rows, step_rows
from pardbg.analysis.base.times import are_launches, times
from pardbg.analysis.comm.matching import collectives, matched_in
from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.comm.overlap import Ops, blocked, ops_by_rank, under_way
from pardbg.analysis.pipeline.dependencies import COMPUTE
from pardbg.analysis.pipeline.pipeline_steps import pipeline_step
from pardbg.analysis.pipeline.pipelines import Layout, layouts, spans
from pardbg.analysis.pipeline.values import PipelineStep
from pardbg.store.process import Process


def unheld_step_rows(view: View, last: int | None = LAST) -> tuple[StepRow, ...]:
    """Return the last steps that ended on every rank; ``last=None``: all of the run."""
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
    """Return a rank's step time without the debugger's holds, in ns."""
    pipeline = pipeline_of(view, rank, step) if was_held(view, t0_ns, t1_ns) else None
    if pipeline is None or not pipeline.held_ns or not pipeline.complete:
        return unheld_ns(view, rank, t0_ns, t1_ns)
    real = [span.t1_ns or 0 for span in spans(view, rank, step)]
    laid = [s.t1_ns or 0 for row in pipeline.ranks if row.rank == rank for s in row.actions]
    begin, end = pipeline.t0_ns, max(real, default=pipeline.t1_ns + pipeline.held_ns)
    before, after = (t0_ns, min(begin, t1_ns)), (max(end, t0_ns), t1_ns)
    around = sum(unheld_ns(view, rank, a, b) for a, b in (before, after) if b > a)
    return around + max(laid, default=pipeline.t1_ns) - begin


def _unheld(
    view: View, row: StepRow, ended: Mapping[int, Mapping[int, tuple[int, int]]]
) -> StepRow:
    spans = {rank: steps[row.step] for rank, steps in ended.items() if row.step in steps}
    if not any(was_held(view, t0, t1) for t0, t1 in spans.values()):
        return row
    longest = max(unheld_step_ns(view, rank, row.step, *span) for rank, span in spans.items())
    phases = dict(row.phases)
    held = [s for r in spans if (s := pipeline_of(view, r, row.step)) and s.held_ns]
    if "pipeline" in phases and held:
        phases["pipeline"] = max(step.t1_ns - step.t0_ns for step in held)
    return replace(row, duration_ns=longest, phases=phases)


def pipeline_of(view: View, rank: int, step: int) -> PipelineStep | None:
    """Return a step of the rank's pipeline; None: the rank is in no pipeline."""
    layout: Layout | None = next((known for known in layouts(view) if rank in known.ranks), None)
    return None if layout is None else pipeline_step(view, layout, step)


Split = tuple[float, float, float]
"""(compute, wait, communication) as fractions of the step; the rest is none of these."""
_COMPUTE_PHASES = ("forward", "backward", "optimizer")


def last_step_split(
    view: View, rank: int, process: Process, pipeline: PipelineStep | None, reuse: bool = False
) -> Split | None:
    """Return the shares of a rank's newest ended step; in a pipeline, of its newest complete
    schedule step. With ``reuse`` a split made from fewer records is enough. None for the host's
    times in a run on a device."""
    if are_launches(view):
        return None
    if pipeline is not None:
        split = pipeline_split(pipeline, rank)
        if split is not None:
            return split
    table, visible = view.rows(process, "step")
    if not visible:
        return None
    begin = int(table.col("t0_ns")[visible - 1])
    end = int(table.col("t1_ns")[visible - 1])
    known, at = view.memo("last splits"), (process.proc, begin, end)
    if not reuse or at not in known:
        known[at] = _split(view, rank, process, (begin, end))
    found: Split | None = known[at]
    return found


def pipeline_split(pipeline: PipelineStep, rank: int) -> Split | None:
    """Return the shares of a rank's schedule step; None if its idle time has no causes yet."""
    length = pipeline.t1_ns - pipeline.t0_ns
    for row in pipeline.ranks:
        if row.rank == rank and length > 0 and row.idle_ns:
            idle = row.idle_ns
            waiting = idle["warmup"] + idle["dependency"] + idle["cooldown"]
            return row.busy_ns / length, waiting / length, idle["communication"] / length
    return None


def read_ahead_splits(view: View, but: Collection[int]) -> None:
    """Read the records that `last_step_split` needs, for all ranks but ``but`` at once."""
    of = {rank: view.rows(p, "step") for rank, p in view.ranks.items() if rank not in but}
    newest = {
        rank: (int(table.col("t0_ns")[visible - 1]), int(table.col("t1_ns")[visible - 1]))
        for rank, (table, visible) in of.items() if visible
    }  # fmt: skip
    read_ahead(view, ("wait", "issue", "phase", "action"), newest)


def _rows_seen(view: View, rank: int, process: Process, step: Interval) -> Hashable:
    return process.proc, step, tuple(view.visible(process, n) for n in ("done", "wait"))


@per_store(_rows_seen)
def _split(view: View, rank: int, process: Process, step: Interval) -> Split | None:
    return split_of(view, rank, process, step, _ops_by_rank(view).get(rank, ()))


def split_of(
    view: View, rank: int, process: Process, step: Interval,
    ops: Sequence[tuple[int, int, int]],
) -> Split | None:  # fmt: skip
    """Return the shares of one step of a rank; ``ops``: its ops around that time, as ``Ops``."""
    held = stalls(view, rank, *step)
    length = step[1] - step[0] - total(held)
    if length <= 0:
        return None
    waiting, moving = under_way(step, ops)
    waits = [] if times(view) == "device" else stretches(view, process, "wait", step)
    exposed = union([*waits, *blocked(view, process, step, [*waiting, *moving])])
    # Where ops overlap, a rank that is still to come decides: the others wait.
    wait = intersect(exposed, waiting)
    comm = subtract(intersect(exposed, moving), wait)
    comm += subtract(waits, [*wait, *comm])
    wait, comm = subtract(wait, held), subtract(comm, held)
    alone = subtract(_compute(view, process, step), [*wait, *comm, *held])
    return total(alone) / length, total(union(wait)) / length, total(union(comm)) / length


def _compute(view: View, process: Process, step: Interval) -> list[Interval]:
    actions = stretches(view, process, "action", step, COMPUTE)
    phases = ("optimizer",) if actions else _COMPUTE_PHASES
    return actions + stretches(view, process, "phase", step, phases)


@per_view
def _ops_by_rank(view: View) -> Ops:
    return ops_by_rank(collectives(view))


SOON: Final = 8
"""Number of steps split at once if others are known or can wait."""
MANY: Final = 128
"""Number of ranks above which there are no courses: the mesh shows up to this many."""
_OPEN: Final = 2
"""Number of newest steps whose records may still be on their way."""
_KEPT: Final = 4 * LAST
"""Number of steps cached per rank, as a recording's cursor goes back and forth."""
_MAX_ISSUES: Final = 1 << 18


class Course(NamedTuple):
    """Fractions of one step of a rank; the rest is other code of its host."""

    step: int
    compute: float
    wait: float
    comm: float


def rank_courses(
    view: View, ranks: Collection[int] | None, most: int = LAST
) -> dict[int, tuple[Course, ...]]:
    """Return rank -> its last LAST steps, oldest first, at most ``most`` of them newly split; for
    ``ranks`` (None: all). Empty for the host's times in a run on a device."""
    if are_launches(view) or len(view.ranks) > MANY:
        return {}
    memo = view.memo("courses")
    spans: dict[int, dict[int, Interval]] = {}
    lacking: dict[int, dict[int, Interval]] = {}
    for rank, process in view.ranks.items():
        if ranks is None or rank in ranks:
            ended = {s: (t0, t1) for s, t0, t1 in last_step_rows(view, process, LAST)}
            open_, kept = list(ended)[-_OPEN:], memo.setdefault(process.proc, {})
            new = [s for s, span in ended.items() if s in open_ or (s, span) not in kept]
            spans[rank], lacking[rank] = ended, {s: ended[s] for s in new[-most:]}
    made = _new_splits(view, lacking)
    found: dict[int, tuple[Course, ...]] = {}
    for rank, ended in spans.items():
        known: dict[tuple[int, Interval], Split | None] = memo[view.ranks[rank].proc]
        all_ = {(s, span): made[rank][s] for s, span in lacking[rank].items()}
        known |= {at: all_[at] for at in all_ if at[0] in list(ended)[:-_OPEN]}
        for old in list(known)[: max(0, len(known) - _KEPT)]:
            del known[old]
        splits = ((s, all_.get((s, span)) or known.get((s, span))) for s, span in ended.items())
        found[rank] = tuple(Course(step, *split) for step, split in splits if split is not None)
    return found


def _new_splits(
    view: View, lacking: Mapping[int, Mapping[int, Interval]]
) -> dict[int, dict[int, Split | None]]:
    """Return rank -> step -> its shares."""
    found: dict[int, dict[int, Split | None]] = defaultdict(dict)
    wanted: dict[int, dict[int, Interval]] = defaultdict(dict)
    for rank, ended in lacking.items():
        for step, span in ended.items():
            pipeline = pipeline_of(view, rank, step)
            found[rank][step] = None if pipeline is None else pipeline_split(pipeline, rank)
            if pipeline is None:
                wanted[rank][step] = span
    if not wanted:
        return found
    steps = {step for ended in wanted.values() for step in ended}
    begin = min(t0 for ended in wanted.values() for t0, _ in ended.values())
    matched = matched_in(view, begin, steps, _MAX_ISSUES)
    rows: dict[int | None, list[CollectiveRow]] = defaultdict(list)
    for row in matched.rows(range(len(matched))):
        rows[row.step].append(row)
    ops = {step: ops_by_rank([*rows[step - 1], *rows[step]]) for step in steps}
    for rank, ended in wanted.items():
        for step, span in ended.items():
            own = ops[step].get(rank, ())  # an op may go on into the next step
            found[rank][step] = split_of(view, rank, view.ranks[rank], span, own)
    return found
