"""What tables would take: step time, bubble, activations in flight and messages, side by side."""

from __future__ import annotations

from dataclasses import dataclass

from pardbg.analysis.base.asof import View
from pardbg.analysis.pipeline.layout import layouts
from pardbg.analysis.schedules.lint import Verdict, lint
from pardbg.analysis.schedules.lowering import lower
from pardbg.analysis.schedules.schedule_table import Table
from pardbg.analysis.whatif.answer import option
from pardbg.analysis.whatif.costs import Costs, costs
from pardbg.analysis.whatif.playout import Between, Outside, ordered, run


@dataclass(frozen=True, slots=True)
class Durations:
    """Supposed durations in ns, of one microbatch through all stages of a rank: a rank with two
    stages spends half of each on either."""

    forward: float
    backward: float
    backward_input: float
    backward_weight: float
    hop: float = 0.0
    """From the end of an action until its output is on the next rank."""


@dataclass(frozen=True, slots=True)
class Predicted:
    name: str
    verdict: Verdict
    step_ns: float | None
    """None: it cannot run."""
    bubble_fraction: float | None
    num_messages: int
    """Sent in a step, over all ranks."""


def predict(name: str, table: Table, taken: Durations | Costs) -> Predicted:
    """One table by supposed durations, or by those of a run."""
    verdict = lint(table)
    sends = sum(
        op.kind.startswith("SEND") for row in lower(table).rows for cell in row for op in cell.ops
    )
    if verdict.wrong or verdict.deadlocks("buffered"):
        return Predicted(name, verdict, None, None, sends)
    if isinstance(taken, Durations):
        step, bubble = _supposed(table, taken)
    else:
        one = option(taken, name, table.plan(), table.num_microbatches)
        step, bubble = one.step_ns, one.bubble_fraction
    return Predicted(name, verdict, step, bubble, sends)


def measured(view: View) -> Costs | str:
    """Durations of a run's newest steps, or in words why there are none."""
    for layout in layouts(view):
        found = None if layout.chain is not None else costs(view, layout)
        if found is not None:
            return found
    return "no complete pipeline step in it to take durations from"


def _supposed(table: Table, taken: Durations) -> tuple[float, float]:
    """(step in ns, bubble fraction)"""
    share = len(table.rows) / table.num_stages
    by_kind = {
        "F": taken.forward, "B": taken.backward, "I": taken.backward_input,
        "W": taken.backward_weight,
    }  # fmt: skip
    times = {
        (stage, kind): (ns * share,)
        for stage in range(table.num_stages)
        for kind, ns in by_kind.items()
    }
    order = ordered(table.plan(), table.num_stages)
    ran = run(order, times, 1.0, Between(hops=(taken.hop,)), Outside())
    return ran.window, 1 - ran.busy / (len(table.rows) * ran.window) if ran.window else 0.0
