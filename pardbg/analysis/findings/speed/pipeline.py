"""Why a pipeline idles more than it must: stages cut unevenly, too few microbatches, or excess."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import Final

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.shared import Evidence, Finding
from pardbg.analysis.findings.speed.windows import Window, often, per_window, takes_turns
from pardbg.analysis.pipeline.implied import bound_fraction
from pardbg.analysis.pipeline.pipeline_steps import pipeline_step
from pardbg.analysis.pipeline.pipelines import Layout, layouts
from pardbg.analysis.pipeline.values import Cause, PipelineStep
from pardbg.analysis.whatif.answer import option
from pardbg.analysis.whatif.costs import costs
from pardbg.events import fields
from pardbg.words import duration, percent, ranks_text

UNEVEN: Final = 0.2
"""A rank's work above the mean of all ranks."""
WORTH: Final = 0.05
"""Share of a step that an even cut saves."""
WORTH_OF_TURNS: Final = 0.2
"""... where ranks take turns on cores, and one gets fewer of them than another."""
EXCESS: Final = 0.1
"""Bubble above what the schedule implies: less is jitter."""
LOUD: Final = 0.2
"""... and when that is more than something to know: busy hosts have less, and ..."""
LOUD_NS: Final = 10_000_000
"""... a step that would be shorter by less is a small model's: Python between its microbatches."""
MICROBATCHES: Final = 2
"""Microbatches per rank below which the bubble is a third or more."""
_CAUSE_WORDS: Final[dict[Cause, str]] = {
    "communication": "tensors on their way",
    "host": "the process busy elsewhere while its input was there",
    "dependency": "actions that took longer than their stage's mean, which the others waited for",
    "warmup": "a late start",
    "cooldown": "a late end",
}
_CAUSE_ADVICE: Final[dict[Cause, str]] = {
    "communication": "Send less or over faster links; overlap it (a schedule with more stages per "
    "rank sends while it computes).",
    "host": "Look at the timeline for what runs between the actions: logging, Python, the loader.",
    "dependency": "Look for what makes single actions slow: other programs on the device, "
    "allocations, uneven microbatches.",
    "warmup": "Look at what the first rank does before its first forward.",
    "cooldown": "Look at what the last backward waits for.",
}


@per_window
def pipelines(view: View, looked_at: Window) -> Iterable[Finding]:
    """Of each pipeline of the run."""
    for layout in layouts(view)[:8]:
        steps = [
            made for step in looked_at.steps
            if (made := pipeline_step(view, layout, step)) is not None and made.complete
        ]  # fmt: skip
        if len(steps) < len(looked_at.steps):
            continue
        uneven = list(_uneven(view, looked_at, layout, steps))
        yield from uneven
        yield from _too_few(layout, steps)
        yield from _excess(view, looked_at, layout, steps)


def _uneven(
    view: View, looked_at: Window, layout: Layout, steps: Sequence[PipelineStep]
) -> Iterable[Finding]:
    """A rank whose stages are more work than the others'."""
    busiest: dict[int, list[float]] = defaultdict(list)
    for step in steps:
        busy = {row.rank: row.busy_ns for row in step.ranks}
        mean = fmean(busy.values())
        most = max(busy, key=lambda r: busy[r])
        if mean > 0 and busy[most] > (1 + UNEVEN) * mean:
            busiest[most].append(busy[most] / mean - 1)
    if not busiest:
        return
    rank = max(busiest, key=lambda r: len(busiest[r]))
    if not often(len(busiest[rank]), looked_at.steps):
        return
    measured = costs(view, layout, looked_at.newest)
    more = median(busiest[rank])
    stages = ", ".join(map(str, layout.stages(rank)))
    turns = takes_turns(view, looked_at, layout.ranks)
    saved, would, worth = None, "", 0.0 if turns else 1.0
    if measured is not None and layout.planned:
        ran = {i: tuple(layout.order[r]) for i, r in enumerate(layout.ranks)}
        name = layout.plan.schedule if layout.plan is not None else ""
        now = option(measured, name, ran, layout.num_microbatches)
        even = option(measured, name, ran, layout.num_microbatches, equal=True)
        saved = max(0, round(now.step_ns - even.step_ns))
        would = f" An even cut would save {duration(saved)} of {duration(now.step_ns)} a step."
        worth = saved / now.step_ns if now.step_ns else 0.0
    newest = steps[-1]
    yield Finding(
        kind="stage-imbalance",
        severity="warning" if worth >= (WORTH_OF_TURNS if turns else WORTH) else "info",
        ranks=layout.ranks,
        culprits=(rank,),
        group=layout.group or None,
        t_ns=newest.t0_ns,
        first_ns=steps[0].t0_ns,
        text=f"rank {rank} (stage {stages}) computes {percent(more, 0)} more than the ranks do on "
        f"average, and the others wait for it.{would}",
        advice="Move layers to the ranks that have less to do, or give it a faster device if its "
        "share is even.",
        cost_ns_per_step=saved,
        evidence=Evidence(newest.t0_ns, rank, "pipeline"),
    )


def _too_few(layout: Layout, steps: Sequence[PipelineStep]) -> Iterable[Finding]:
    """The bubble is there because too few microbatches fill the pipeline."""
    bound = bound_fraction(layout)
    ranks, m = len(layout.ranks), layout.num_microbatches
    v = layout.plan.num_virtual if layout.plan is not None else 1
    if not layout.planned or bound is None or m * v >= MICROBATCHES * ranks:
        return  # without a schedule's own plan, what a microbatch is cannot be known
    measured = median(step.bubble_fraction or 0 for step in steps)
    window = median(step.t1_ns - step.t0_ns for step in steps)
    wanted = 2 * MICROBATCHES * ranks // v
    then = (ranks - 1) / (v * wanted + ranks - 1)
    if measured < 0.8 * bound:
        return
    newest = steps[-1]
    yield Finding(
        kind="too-few-microbatches",
        severity="warning",
        ranks=layout.ranks,
        group=layout.group or None,
        t_ns=newest.t0_ns,
        first_ns=steps[0].t0_ns,
        text=f"{m} microbatch{'es are' if m > 1 else ' is'} few for {ranks} ranks: even with equal "
        f"stages {percent(bound, 0)} of the pipeline idles (measured {percent(measured, 0)}); "
        f"{wanted} would leave {percent(then, 0)}.",
        advice="More microbatches per step (smaller ones, or more gradient accumulation), or a "
        "schedule with several stages per rank; `pardbg whatif` says what each would bring.",
        cost_ns_per_step=round(window * (1 - (1 - bound) / (1 - then))),
        evidence=Evidence(newest.t0_ns, None, "pipeline"),
    )


def _excess(
    view: View, looked_at: Window, layout: Layout, steps: Sequence[PipelineStep]
) -> Iterable[Finding]:
    """More bubble than the plan implies with the durations measured."""
    over = [step for step in steps if (step.excess_fraction or 0) >= EXCESS]
    if not often(len(over), looked_at.steps):
        return
    excess = median(s.excess_fraction or 0 for s in over)
    length = median(s.t1_ns - s.t0_ns for s in over)
    implied = median(s.implied_fraction or 0 for s in over)
    cause, share, rank = _main_cause(over)
    cost = round(length * (1 - (1 - implied - excess) / (1 - implied)))
    loud = excess >= LOUD and cost >= LOUD_NS and not crowded(view, layout.ranks)
    loud &= not takes_turns(view, looked_at, layout.ranks)
    newest = over[-1]
    yield Finding(
        kind="schedule-excess",
        severity="warning" if loud else "info",
        ranks=layout.ranks,
        group=layout.group or None,
        t_ns=newest.t0_ns,
        first_ns=over[0].t0_ns,
        text=f"the pipeline idles {percent(excess, 0)} more than its schedule implies "
        f"({percent(implied + excess, 0)}, implied {percent(implied, 0)}): mostly "
        f"{_CAUSE_WORDS[cause]} ({percent(share, 0)} of the window, most on {ranks_text([rank])}).",
        advice=_CAUSE_ADVICE[cause],
        cost_ns_per_step=cost,
        evidence=Evidence(newest.t0_ns, rank, "pipeline"),
    )


def crowded(view: View, ranks: Sequence[int]) -> bool:
    """Return whether ranks that compute on cores outnumber their host's cores: they take turns."""
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        process = view.ranks.get(rank)
        cpus = fields.integer(process.facts, "cpus", 0) if process is not None else 0
        if process is not None and cpus and fields.text(process.facts, "device") == "cpu":
            by_host[process.host].append(cpus)
    return any(len(cpus) > max(cpus) for cpus in by_host.values())


def _main_cause(steps: Sequence[PipelineStep]) -> tuple[Cause, float, int]:
    """(cause, its share of the window, the rank that has most of it). Communication and host are
    never implied; else it is dependency."""
    sums: dict[Cause, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    whole = 0
    for step in steps:
        whole += (step.t1_ns - step.t0_ns) * len(step.ranks)
        for row in step.ranks:
            for kind, ns in row.idle_ns.items():
                sums[kind][row.rank] += ns
    totals = {kind: sum(ranks.values()) for kind, ranks in sums.items()}
    over = sum(s.excess_fraction or 0 for s in steps) / len(steps) * whole
    cause: Cause = "communication"
    if totals.get("host", 0) > totals.get("communication", 0):
        cause = "host"
    if totals.get(cause, 0) < 0.5 * over:
        cause = "dependency"
    by_rank = sums[cause]
    return cause, totals.get(cause, 0) / whole, max(by_rank, key=lambda r: by_rank[r])
