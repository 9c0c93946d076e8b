"""Metrics of a run by name: the numbers that ``check`` tests and ``diff`` compares.

Times are ns, sizes bytes, rates GB/s (1e9 bytes), fractions 0..1. Steps that the debugger held are
left out if there are others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from pardbg.analysis.answers.ranks import agent_overhead
from pardbg.analysis.answers.report_pipeline import complete_steps
from pardbg.analysis.answers.step_times import unheld_step_rows
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.holds import held_ns, was_held
from pardbg.analysis.base.steps import StepRow, last_step_rows
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.comm.op_rows import CollectiveRow, P2PRow
from pardbg.analysis.comm.p2p import p2p_rows
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.finding import SEVERITIES
from pardbg.analysis.memory.breakdown import latest_bytes, memory_rows
from pardbg.analysis.pipeline.pipelines import layouts
from pardbg.analysis.pipeline.values import CAUSES, PipelineStep
from pardbg.analysis.same.comparison import OF_LOSS, Sameness, alone, compare

Unit = Literal["time", "fraction", "bytes", "rate", "floors", "number"]
Number = int | float
Values = Callable[["Scope", str], Sequence[Number]]
"""(scope, filter) -> values of the metric; empty: the session has none"""


@dataclass(frozen=True)
class Scope:
    """Part of a run that is measured."""

    view: View
    skip: int = 0
    """Number of first steps left out as warm-up."""

    @cached_property
    def sameness(self) -> Sameness:
        """Return the comparison of the run with its reference."""
        store = self.view.store
        return alone(store) if store.reference is None else compare(store.reference, store)

    @property
    def first_step(self) -> int:
        rows = unheld_step_rows(self.view, None)
        return (rows[0].step if rows else 0) + self.skip

    @property
    def since_ns(self) -> int:
        """Return the begin of the first step that counts, in ns; 0 if no step is skipped."""
        if not self.skip:
            return 0
        begins = [
            t0
            for process in self.view.ranks.values()
            for step, t0, _ in last_step_rows(self.view, process, None)
            if step == self.first_step
        ]
        return min(begins, default=0)


@dataclass(frozen=True, slots=True)
class Metric:
    """A named quantity, with its values over a run (steps, ops, ranks …)."""

    name: str
    unit: Unit
    doc: str
    over: str
    """Unit of counting: ``steps``, ``ops``, ``ranks``; empty for a single value."""
    aggregate: str
    """Aggregate taken if a check names none."""
    values: Values
    filter: str = ""
    """Meaning of ``[…]``; empty: the metric has nothing to select."""

    @property
    def of_speed(self) -> bool:
        """Return whether the metric is about speed of the job's compute or communication."""
        return self.name in _OF_SPEED


def free_steps(scope: Scope, _: str = "") -> list[StepRow]:
    """Return the steps that count, without those that the debugger held."""
    view = scope.view
    rows = [row for row in unheld_step_rows(view, None) if row.step >= scope.first_step]
    if not any(len(process.table("held")) for process in view.ranks.values()):
        return rows
    windows: dict[int, tuple[int, int]] = {}
    for process in view.ranks.values():
        for step, t0, t1 in last_step_rows(view, process, None):
            known = windows.get(step, (t0, t1))
            windows[step] = (min(t0, known[0]), max(t1, known[1]))
    ranks = list(view.ranks)
    return [row for row in rows if not held_ns(view, ranks, *windows[row.step])] or rows


def free_pipeline_steps(scope: Scope, _: str = "") -> list[PipelineStep]:
    """Return the complete pipeline steps that count, without those that the debugger held."""
    found = layouts(scope.view)
    if not found:
        return []
    steps = [s for s in complete_steps(scope.view, found[0]) if s.step >= scope.first_step]
    return [s for s in steps if not s.held_ns] or steps


def ops(scope: Scope, which: str = "") -> list[CollectiveRow]:
    """Return the collectives that count; ``which`` is a group's name, an op, or ``group/op``."""
    first = scope.first_step if scope.skip else 0
    found = [
        row
        for row in collectives(scope.view, None)
        if (row.step is None or row.step >= first) and _fits(which, row.group, row.op)
    ]
    times = [[t for a in row.arrivals for t in (a.issued_ns, a.completed_ns)] for row in found]
    return [row for row, of in zip(found, times, strict=True) if not _held(scope, of)] or found


def _held(scope: Scope, times: Iterable[int | None]) -> bool:
    """Return whether ranks were held between these times, which then say nothing of the program."""
    known = [t for t in times if t is not None]
    return bool(known) and was_held(scope.view, min(known), max(known))


def transfers(scope: Scope, _: str = "") -> list[P2PRow]:
    """Return the pairs of send and receive that count."""
    since = scope.since_ns
    found = [r for r in p2p_rows(scope.view, None) if (r.send_ns or r.recv_ns or 0) >= since]
    return [r for r in found if not _held(scope, (r.send_ns, r.recv_ns, r.done_ns))] or found


def _fits(which: str, group: str, op: str) -> bool:
    return which in ("", group, op, f"{group}/{op}")


def _known(values: Iterable[Number | None]) -> list[Number]:
    return [value for value in values if value is not None]


def _each(rows: Callable[[Scope, str], Iterable[object]], name: str) -> Values:
    """Return the function of a metric's values: one attribute of each row that has it."""
    return lambda scope, which: _known(getattr(row, name) for row in rows(scope, which))


def _phase(scope: Scope, which: str) -> list[Number]:
    return _known(row.phases.get(which) for row in free_steps(scope))


def _bubble(scope: Scope, _: str) -> list[Number]:
    """Return the bubbles of pipelines that the program or a framework defines; a pipeline inferred
    from messages is shown, but must not fail a build."""
    if any(layout.chain is not None for layout in layouts(scope.view)):
        return []
    return _known(step.bubble_fraction for step in free_pipeline_steps(scope))


def _excess(scope: Scope, _: str) -> list[Number]:
    return _known(step.excess_fraction for step in free_pipeline_steps(scope))


def _in_flight(scope: Scope, _: str) -> list[Number]:
    return [row.max_in_flight for step in free_pipeline_steps(scope) for row in step.ranks]


def _idle(scope: Scope, which: str) -> list[Number]:
    """Return, for each step, the share of its window in which ranks idled for one cause."""
    if which not in CAUSES:
        return []
    return [
        sum(ns for row in step.ranks for cause, ns in row.idle_ns.items() if cause == which)
        / max(1, len(step.ranks) * (step.t1_ns - step.t0_ns))
        for step in free_pipeline_steps(scope)
        if any(which in row.idle_ns for row in step.ranks)
    ]


def _memory(scope: Scope, which: str) -> list[Number]:
    """Return the newest bytes per rank, of one category or in total."""
    if which == "activations":
        return _known(row.activations_peak_bytes for row in memory_rows(scope.view))
    if not which:
        return _known(row.total_bytes for row in memory_rows(scope.view))
    latest = [latest_bytes(scope.view, p) for p in scope.view.ranks.values()]
    return [values[which][0] for values in latest if which in values]


def _agent(scope: Scope, _: str) -> list[Number]:
    view = scope.view
    return _known(agent_overhead(view, process, None) for process in view.ranks.values())


def _verdicts(scope: Scope) -> list[str]:
    return [*(row.verdict for row in ops(scope)), *(row.verdict for row in transfers(scope))]


def _mismatches(scope: Scope, _: str) -> list[Number]:
    verdicts = _verdicts(scope)
    return [sum(v.endswith("mismatch") for v in verdicts)] if verdicts else []


def _missing(scope: Scope, _: str) -> list[Number]:
    verdicts = _verdicts(scope)
    return [verdicts.count("missing rank")] if verdicts else []


def _findings(scope: Scope, which: str) -> list[Number]:
    """Return the number of findings of at least this severity."""
    counted = SEVERITIES[: SEVERITIES.index(which) + 1] if which else SEVERITIES
    return [sum(f.severity in counted for f in findings(scope.view))]


_OF_SPEED: Final = frozenset((
    "step", "phase", "bubble", "implied", "excess", "idle", "skew", "wait", "transfer", "busbw",
    "p2p",
))  # fmt: skip
_OPS: Final = "group, op or group/op: skew[all_reduce], busbw[dp/all_reduce]"


def worst_difference(found: Sameness) -> list[float]:
    """Return the largest difference of a gradient, parameter or buffer, in noise floors; infinite
    for replicas that differ and for a loss off by a logarithm; empty if there is no answer."""
    if found.exit_code not in (0, 1):
        return []
    if found.reason == "replicas-differ":
        return [math.inf]
    if found.what == OF_LOSS:
        return [math.inf]
    rows = [row.floors for row in found.rows if row.what in ("grad", "param", "buffer", "used")]
    return [max(rows, default=0.0)]


METRICS: Final = {
    metric.name: metric
    for metric in (
        Metric("step", "time", "time of a training step", "steps", "p50",
               _each(free_steps, "duration_ns")),
        Metric("phase", "time", "time of one phase in a step, mean over ranks", "steps", "p50",
               _phase, "data, forward, backward, optimizer, pipeline: phase[data]"),
        Metric("bubble", "fraction", "share of a pipeline step's window without compute",
               "steps", "p50", _bubble),
        Metric("implied", "fraction", "bubble that the schedule implies", "steps", "p50",
               _each(free_pipeline_steps, "implied_fraction")),
        Metric("excess", "fraction", "bubble beyond the implied one", "steps", "p50", _excess),
        Metric("idle", "fraction", "share of a pipeline step's window idle for one cause",
               "steps", "p50", _idle,
               "warmup, dependency, communication, host, launch (host-bound), cooldown: "
               "idle[host]"),
        Metric("in_flight", "number", "microbatches in flight at most, per rank and step",
               "ranks", "max", _in_flight),
        Metric("skew", "time", "last arrival - first, per collective", "ops", "p50",
               _each(ops, "skew_ns"), _OPS),
        Metric("wait", "time", "sum over ranks of the wait for the last one", "ops", "p50",
               _each(ops, "wait_ns"), _OPS),
        Metric("transfer", "time", "completion - last arrival", "ops", "p50",
               _each(ops, "transfer_ns"), _OPS),
        Metric("busbw", "rate", "bus bandwidth (nccl-tests)", "ops", "p50",
               _each(ops, "busbw_gbps"), _OPS),
        Metric("p2p", "time", "from when send and receive were both there to completion", "ops",
               "p50", _each(transfers, "transfer_ns")),
        Metric("memory", "bytes", "newest bytes of a rank; without [] in all", "ranks", "max",
               _memory, "parameters, gradients, optimizer, activations (peak), rss, allocated"),
        Metric("loss", "number", "loss of a step", "steps", "last", _each(free_steps, "loss")),
        Metric("agent", "fraction", "time in the agent's hooks, of the steps' time", "ranks",
               "max", _agent),
        Metric("mismatches", "number", "ops on which ranks disagree", "", "last", _mismatches),
        Metric("missing", "number", "ops that a rank did not come to", "", "last", _missing),
        Metric("findings", "number", "findings at the end", "", "last", _findings,
               "error, warning (or worse), info: findings[error]"),
        Metric("dropped", "number", "records lost", "", "last",
               lambda scope, _: [scope.view.store.lost(None)]),
        Metric("exit_code", "number", "of the job", "", "last",
               lambda scope, _: _known((scope.view.run_end or (0, None))[1:])),
        Metric("duration", "time", "of the run", "", "last",
               lambda scope, _: [scope.view.end_ns - scope.view.begin_ns]),
        Metric("same", "floors", "largest difference from the reference's gradients and parameters",
               "", "last", lambda scope, _: worst_difference(scope.sameness)),
        Metric("ranks", "number", "ranks seen", "", "last",
               lambda scope, _: [len(scope.view.ranks)]),
        Metric("steps", "number", "steps that count", "", "last",
               lambda scope, _: [len(free_steps(scope))]),
    )
}  # fmt: skip
"""All metrics of ``pardbg check``, in the order in which it lists them."""
