"""Finds why a pipeline idles more than it must: uneven stages, too few microbatches, or excess."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import Final

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.intervals import clip, total
from pardbg.analysis.base.leads import host_bound
from pardbg.analysis.base.times import times
from pardbg.analysis.findings.finding import Candidate, Evidence
from pardbg.analysis.findings.kinds.speed_kinds import (
    ScheduleExcess,
    StageImbalance,
    TooFewMicrobatches,
)
from pardbg.analysis.findings.speed.system_calls import blocked
from pardbg.analysis.findings.speed.windows import Window, often, per_window
from pardbg.analysis.pipeline.dependencies import COMPUTE
from pardbg.analysis.pipeline.idle import busy_intervals
from pardbg.analysis.pipeline.implied import bound_fraction
from pardbg.analysis.pipeline.outlines import Outline, begun, implied, step_outline
from pardbg.analysis.pipeline.pipeline_steps import pipeline_step
from pardbg.analysis.pipeline.pipelines import Layout, layouts
from pardbg.analysis.pipeline.values import Cause, PipelineStep
from pardbg.analysis.whatif.answer import option
from pardbg.analysis.whatif.costs import costs
from pardbg.events import fields

UNEVEN: Final = 0.2
"""Share by which a rank's work exceeds the mean of all ranks."""
EXCESS: Final = 0.1
"""Least bubble beyond the one that the schedule implies, as a share; below it is jitter."""
MOSTLY: Final = 0.6
"""Share of the time without launches, or in system calls, that makes one rank the culprit."""
MICROBATCHES: Final = 2
"""Minimum microbatches per rank; below it the bubble is a third or more."""


@per_window
def pipelines(view: View, looked_at: Window) -> Iterable[Candidate]:
    """Find the faults of each pipeline of the run."""
    for layout in layouts(view)[:8]:
        made = (step_outline(view, layout, step) for step in looked_at.steps)
        steps = [one for one in made if one is not None]
        if len(steps) < len(looked_at.steps):
            continue
        yield from _uneven(view, looked_at, layout, steps)
        yield from _too_few(layout, steps)
        yield from _excess(view, looked_at, layout, steps)


def _uneven(
    view: View, looked_at: Window, layout: Layout, steps: Sequence[Outline]
) -> Iterable[Candidate]:
    """Find a rank whose stages are more work than the others'."""
    busiest: dict[int, list[float]] = defaultdict(list)
    for step in steps:
        busy = step.busy_ns
        mean, most = fmean(busy.values()), max(busy, key=lambda r: busy[r])
        if mean > 0 and busy[most] > (1 + UNEVEN) * mean:
            busiest[most].append(busy[most] / mean - 1)
    if not busiest:
        return
    rank = max(busiest, key=lambda r: len(busiest[r]))
    if not often(len(busiest[rank]), looked_at.steps):
        return
    saved, step_ns = _even(view, looked_at, layout)
    newest = steps[-1]
    yield Candidate(
        kind="stage-imbalance", ranks=layout.ranks, culprits=(rank,), group=layout.group or None,
        t_ns=newest.t0_ns, first_ns=steps[0].t0_ns, cost_ns_per_step=saved,
        facts=StageImbalance(
            tuple(layout.stages(rank)), median(busiest[rank]), saved, step_ns,
            times(view) == "device", _unlaunched(view, layout, newest, rank),
        ),
    )  # fmt: skip


def _unlaunched(view: View, layout: Layout, step: Outline, rank: int) -> float:
    """Return the share of a rank's actions in which its host had yet to launch the rest."""
    window, seen = (step.t0_ns, step.t1_ns), begun(view, layout, step.step)
    actions = () if seen is None else seen.rows[rank]
    busy = clip(busy_intervals(actions, window[1]), *window)
    late = host_bound(view, rank, window)
    return sum(total(clip(late, *span)) for span in busy) / max(1, total(busy))


def _even(view: View, looked_at: Window, layout: Layout) -> tuple[int | None, float]:
    """Return (time of a step that an even split would save, the step's time) in ns, both as
    planned; the former is None without a plan."""
    measured = costs(view, layout, looked_at.newest)
    if measured is None or not layout.planned:
        return None, 0.0
    ran = {i: tuple(layout.order[r]) for i, r in enumerate(layout.ranks)}
    name = layout.plan.schedule if layout.plan is not None else ""
    now = option(measured, name, ran, layout.num_microbatches)
    even = option(measured, name, ran, layout.num_microbatches, equal=True)
    return max(0, round(now.step_ns - even.step_ns)), now.step_ns


def _too_few(layout: Layout, steps: Sequence[Outline]) -> Iterable[Candidate]:
    """Find a bubble that is there because too few microbatches fill the pipeline."""
    bound = bound_fraction(layout)
    ranks, m = len(layout.ranks), layout.num_microbatches
    v = layout.plan.num_virtual if layout.plan is not None else 1
    if not layout.planned or bound is None or m * v >= MICROBATCHES * ranks:
        return  # without a schedule's own plan, microbatches are not known
    measured = median(step.bubble_fraction for step in steps)
    window = median(step.t1_ns - step.t0_ns for step in steps)
    wanted = 2 * MICROBATCHES * ranks // v
    then = (ranks - 1) / (v * wanted + ranks - 1)
    if measured < 0.8 * bound:
        return
    newest = steps[-1]
    yield Candidate(
        kind="too-few-microbatches", ranks=layout.ranks, group=layout.group or None,
        t_ns=newest.t0_ns, first_ns=steps[0].t0_ns,
        cost_ns_per_step=round(window * (1 - (1 - bound) / (1 - then))),
        facts=TooFewMicrobatches(m, bound, measured, wanted, then),
    )  # fmt: skip


def _excess(
    view: View, looked_at: Window, layout: Layout, steps: Sequence[Outline]
) -> Iterable[Candidate]:
    """Find a larger bubble than the plan implies with the measured durations."""
    more = [step.step for step in steps if _above(view, layout, step) >= EXCESS]
    if not often(len(more), looked_at.steps):
        return
    over = [made for step in more if (made := pipeline_step(view, layout, step)) is not None]
    excess = median(s.excess_fraction or 0 for s in over)
    length = median(s.t1_ns - s.t0_ns for s in over)
    least = median(s.implied_fraction or 0 for s in over)
    cause, share, rank = _main_cause(over)
    cost = round(length * (1 - (1 - least - excess) / (1 - least)))
    newest = over[-1]
    shared = crowded(view, layout.ranks)
    late = sum(row.idle_ns.get(cause, 0) for step in over for row in step.ranks)
    own = sum(row.idle_ns.get(cause, 0) for s in over for row in s.ranks if row.rank == rank)
    call, where, call_ns = blocked(view, looked_at, (rank,))
    if cause != "host" or call_ns < MOSTLY * own / len(over) or own < MOSTLY * late:
        call = where = None
    alone = call is not None or (cause == "launch" and own >= MOSTLY * late)
    yield Candidate(
        kind="schedule-excess", ranks=layout.ranks, group=layout.group or None,
        culprits=(rank,) if alone else (), where=where,
        t_ns=newest.t0_ns, first_ns=over[0].t0_ns, cost_ns_per_step=cost,
        evidence=Evidence(newest.t0_ns, rank, "pipeline"),
        facts=ScheduleExcess(
            excess, least, cause, share, rank, cost, shared, alone, call, call_ns,
            view.ranks[rank].pid, *_mean_action(over, rank, own),
        ),
    )  # fmt: skip


def _above(view: View, layout: Layout, step: Outline) -> float:
    """Return the share of the bubble beyond the implied one; 0 if that is not known."""
    fraction = implied(view, layout, step.step, step.bubble_fraction)
    return 0.0 if fraction is None else step.bubble_fraction - fraction


def _mean_action(steps: Sequence[PipelineStep], rank: int, own_ns: int) -> tuple[float, float]:
    """Return (mean time of an action over all ranks, ``own_ns`` per action of ``rank``), in ns."""
    rows = [row for step in steps for row in step.ranks]
    numbers = [sum(span.kind in COMPUTE for span in row.actions) for row in rows]
    own = sum(number for row, number in zip(rows, numbers, strict=True) if row.rank == rank)
    return sum(row.busy_ns for row in rows) / max(1, sum(numbers)), own_ns / max(1, own)


def crowded(view: View, ranks: Sequence[int]) -> bool:
    """Return whether more ranks compute on a host than it has cores, so that they take turns."""
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        process = view.ranks.get(rank)
        cpus = fields.integer(process.facts, "cpus", 0) if process is not None else 0
        if process is not None and cpus and fields.text(process.facts, "device") == "cpu":
            by_host[process.host].append(cpus)
    return any(len(cpus) > max(cpus) for cpus in by_host.values())


def _main_cause(steps: Sequence[PipelineStep]) -> tuple[Cause, float, int]:
    """Return (cause, its share of the window, rank with most of it). Communication, host and
    launches are never implied; without enough of these the cause is ``dependency``."""
    sums: dict[Cause, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    whole = 0
    for step in steps:
        whole += (step.t1_ns - step.t0_ns) * len(step.ranks)
        for row in step.ranks:
            for kind, ns in row.idle_ns.items():
                sums[kind][row.rank] += ns
    totals = {kind: sum(ranks.values()) for kind, ranks in sums.items()}
    over = sum(s.excess_fraction or 0 for s in steps) / len(steps) * whole
    never: tuple[Cause, ...] = ("communication", "host", "launch")
    cause = max(never, key=lambda kind: totals.get(kind, 0))
    if cause == "launch":  # while one rank's device stands, others wait for it
        over /= len(steps[0].ranks)
    if totals.get(cause, 0) < 0.5 * over:
        cause = "dependency"
    by_rank = sums[cause]
    return cause, totals.get(cause, 0) / whole, max(by_rank, key=lambda r: by_rank[r])
