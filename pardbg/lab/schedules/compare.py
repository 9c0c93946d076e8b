"""Comparison of tables: predicted step time, bubble, activations in flight and messages."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from pardbg.analysis.base.asof import View
from pardbg.analysis.pipeline.pipelines import layouts
from pardbg.analysis.pipeline.play import Between
from pardbg.analysis.whatif.answer import option
from pardbg.analysis.whatif.costs import Costs, costs
from pardbg.analysis.whatif.playout import Outside, ordered, run, spans
from pardbg.lab.schedules.lint import Verdict, lint
from pardbg.lab.schedules.schedule_table import Table


@dataclass(frozen=True, slots=True)
class Durations:
    """Assumed ns of one microbatch through all stages of a rank, which share it evenly."""

    forward: float
    backward: float
    backward_input: float
    backward_weight: float
    hop: float = 0.0
    """Time from the end of an action until its output is on the next rank, ns."""


@dataclass(frozen=True, slots=True)
class Predicted:
    name: str
    verdict: Verdict
    step_ns: float | None
    """Duration of a step; None: the table cannot run."""
    bubble_fraction: float | None
    num_messages: int
    """Number of messages sent in a step, over all ranks."""


def predict(name: str, table: Table, taken: Durations | Costs) -> Predicted:
    """Predict one table by assumed durations, or by those of a run."""
    verdict = lint(table)
    sends = table.num_messages
    if verdict.wrong or verdict.deadlocks("buffered"):
        return Predicted(name, verdict, None, None, sends)
    if isinstance(taken, Durations):
        times = _times(len(table.rows), table.num_stages, taken)
        order, between = ordered(table.plan(), table.num_stages), Between(hops=(taken.hop,))
        ran = run(order, times, 1.0, between, Outside())
        step, bubble = ran.window, ran.bubble_fraction(len(table.rows))
    else:
        one = option(taken, name, table.plan(), table.num_microbatches)
        step, bubble = one.step_ns, one.bubble_fraction
    return Predicted(name, verdict, step, bubble, sends)


def measured(view: View) -> Costs | str:
    """Return the durations of a run's newest steps, or the reason why there are none."""
    for layout in layouts(view):
        found = None if layout.chain is not None else costs(view, layout)
        if found is not None:
            return found
    return "no complete pipeline step in it to take durations from"


def timeline(table: Table, taken: Durations | Costs) -> dict[str, tuple[float, float]]:
    """Return action -> (begin, end) in ns of a table that can run, by the median one of steps."""
    order = ordered(table.plan(), table.num_stages)
    if isinstance(taken, Durations):
        times = _times(len(table.rows), table.num_stages, taken)
        return spans(order, times, 1.0, Between(hops=(taken.hop,)))
    step = sorted(taken.steps, key=lambda one: one.observed_ns)[len(taken.steps) // 2]
    scale = taken.num_microbatches / table.num_microbatches
    return spans(order, step.cut(table.num_stages, taken.split), scale, step.between)


def mean_times(
    taken: Durations | Costs, num_ranks: int, num_stages: int, num_microbatches: int
) -> tuple[dict[tuple[int, str], float], float]:
    """Return ((stage, kind) -> mean ns, gap to the next action included; ns from rank to rank)."""
    if isinstance(taken, Durations):
        supposed = _times(num_ranks, num_stages, taken)
        return {key: row[0] for key, row in supposed.items()}, taken.hop
    step = sorted(taken.steps, key=lambda one: one.observed_ns)[len(taken.steps) // 2]
    scale = taken.num_microbatches / num_microbatches
    gap = fmean(step.between.gaps) + step.between.message
    rows = step.cut(num_stages, taken.split)
    times = {key: scale * fmean(row) + (gap if any(row) else 0.0) for key, row in rows.items()}
    return times, fmean(step.between.hops)


def _times(
    num_ranks: int, num_stages: int, taken: Durations
) -> dict[tuple[int, str], tuple[float]]:
    """Return (stage, kind) -> ns."""
    share = num_ranks / num_stages
    by_kind = {
        "F": taken.forward, "B": taken.backward, "I": taken.backward_input,
        "W": taken.backward_weight,
    }  # fmt: skip
    return {
        (stage, kind): (ns * share,) for stage in range(num_stages) for kind, ns in by_kind.items()
    }
