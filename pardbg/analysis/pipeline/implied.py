"""Schedule implied by a plan: its actions in time, and its bubble.

The plan is a list of actions per rank; run with the mean durations measured in a step and with free
communication it becomes comparable with the actual step. That is the *implied* schedule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import fmean

from pardbg.analysis.pipeline.critical_path import CriticalPath, critical_path
from pardbg.analysis.pipeline.dependencies import COMPUTE, Action, parse
from pardbg.analysis.pipeline.in_flight import in_flight_curve
from pardbg.analysis.pipeline.pipelines import Layout
from pardbg.analysis.pipeline.play import compute_plan, simulate
from pardbg.analysis.pipeline.values import ActionSpan, PipelineStep, PipelineView

_UNKNOWN_NS = 1e6
"""Duration drawn for an action that has not been measured, in ns: large enough to be visible."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned action, in ns from the step's begin."""

    text: str
    stage: int
    kind: str
    microbatch: int
    t0_ns: float
    t1_ns: float


@dataclass(frozen=True, slots=True)
class ScheduleDetail:
    """The drawn step beside its plan."""

    boxes: Mapping[int, tuple[Planned, ...]]
    """rank -> planned actions in time."""
    path: CriticalPath | None
    """Critical path of the last complete step; None before there is one."""
    in_flight: Mapping[int, tuple[tuple[int, int], ...]]
    """rank -> (t_ns, microbatches forwarded and not yet backwarded), at each change."""
    last_in_flight: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """``in_flight`` of the last complete step."""


def schedule_detail(view: PipelineView | None) -> ScheduleDetail | None:
    """Return the detail of the step at the cursor; None: no pipeline action has run."""
    step = (view.step or view.last_complete) if view is not None else None
    if view is None or step is None:
        return None
    measured = view.last_complete or step
    return ScheduleDetail(
        lay_out(step, measured, view.num_stages),
        None
        if view.times == "host"
        else critical_path(step if step.complete else measured, view.num_stages),
        *(
            {rank.rank: tuple(in_flight_curve(rank)) for rank in of.ranks}
            for of in (step, measured)
        ),
    )


def mean_durations(step: PipelineStep) -> dict[tuple[int, str], float]:
    """Return mean ns by (stage, kind), and by (-1, kind) over all stages."""
    sums: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for rank in step.ranks:
        for action in rank.actions:
            if action.t1_ns is None:
                continue
            for key in ((action.stage, action.kind), (-1, action.kind)):
                sums[key][0] += action.t1_ns - action.t0_ns
                sums[key][1] += 1
    return {key: total / number for key, (total, number) in sums.items()}


def lay_out(
    step: PipelineStep, measured: PipelineStep, num_stages: int
) -> Mapping[int, tuple[Planned, ...]]:
    """Return rank -> the step's plan in time, with ``measured``'s mean durations, in order."""
    plans = tuple((rank.rank, rank.plan) for rank in step.ranks)
    return _lay_out(plans, num_stages, tuple(sorted(mean_durations(measured).items())))


@lru_cache(maxsize=8)
def _lay_out(
    plans: tuple[tuple[int, tuple[str, ...]], ...],
    num_stages: int,
    durations: tuple[tuple[tuple[int, str], float], ...],
) -> Mapping[int, tuple[Planned, ...]]:
    times = dict(durations)
    order = compute_plan(dict(plans), [rank for rank, _ in plans])

    def length(_rank: int, action: Action) -> float:
        if action.kind not in COMPUTE:
            return times.get((action.stage, action.kind), 0.0)
        tries = ((action.stage, action.kind), (-1, action.kind), (-1, "F"))
        return next((times[key] for key in tries if key in times), _UNKNOWN_NS)

    run = simulate(order, num_stages, length)
    rows = run.rows if run is not None else _in_order(order)
    return {rank: tuple(_planned(*box) for box in row) for rank, row in rows.items()}


def _in_order(
    order: Mapping[int, Sequence[str]],
) -> Mapping[int, tuple[tuple[str, float, float], ...]]:
    """Return an incomplete plan, which cannot be simulated, laid out by its order alone."""
    return {
        rank: tuple((text, at * _UNKNOWN_NS, (at + 1) * _UNKNOWN_NS) for at, text in enumerate(row))
        for rank, row in order.items()
    }


def _planned(text: str, t0_ns: float, t1_ns: float) -> Planned:
    action = parse(text) or Action(-1, "X", -1)
    return Planned(text, action.stage, action.kind, action.microbatch, t0_ns, t1_ns)


def makespan(boxes: Mapping[int, Sequence[Planned]]) -> float:
    """Return the time from the first planned begin to the last planned end, in ns."""
    return max((row[-1].t1_ns for row in boxes.values() if row), default=0.0)


# -- the bubble

_ONE_STAGE = ("gpipe", "1f1b")
_LOOPED = ("interleaved1f1b", "loopedbfs")


def schedule_name(name: str) -> str:
    """Return ``1f1b`` for ``Schedule1F1B`` or a framework's ``Megatron 1F1B``."""
    return (
        name.lower().rpartition(" ")[2].removeprefix("schedule").replace("_", "").replace("-", "")
    )


def bound_fraction(layout: Layout) -> float | None:
    """Return the bubble with equal stages: (p-1)/(m+p-1) for GPipe and 1F1B, (p-1)/(v·m+p-1)
    interleaved; (p-1)/(m+p-1) for a chain, too, as its order does not change it. None for schedules
    without such a formula."""
    plan, virtual = layout.plan, 1
    if layout.chain is None:
        name = schedule_name(plan.schedule) if plan is not None else ""
        if plan is None or name not in (*_ONE_STAGE, *_LOOPED):
            return None
        virtual = plan.num_virtual if name in _LOOPED else 1
    lead = len(layout.ranks) - 1
    below = virtual * layout.num_microbatches + lead
    return lead / below if below > 0 else None


def implied_fraction(layout: Layout, rows: Mapping[int, Sequence[ActionSpan]]) -> float | None:
    """Return the bubble of the plan with the measured mean durations per (stage, kind) and free
    communication; None if a duration is missing."""
    if not layout.planned:
        return None
    measured: dict[tuple[int, str], list[int]] = {}
    for row in rows.values():
        for span, own_ns in own_times(row):
            measured.setdefault((span.stage, span.kind), []).append(own_ns)
    means = {key: fmean(times) for key, times in measured.items()}

    def duration(_rank: int, action: Action) -> float:
        return means[action.stage, action.kind]

    try:
        simulated = simulate(layout.order, layout.num_stages, duration)
    except KeyError:
        return None
    return simulated.bubble_fraction if simulated is not None else None


def own_times(row: Sequence[ActionSpan]) -> list[tuple[ActionSpan, int]]:
    """Return each finished compute action with its own time in ns.

    If two overlap (a pair of DualPipeV with a function of its own), the later one counts from the
    end of the earlier, so that the sum is the time the rank was busy.
    """
    times: list[tuple[ActionSpan, int]] = []
    free = 0
    for span in row:
        if span.t1_ns is not None and span.kind in COMPUTE:
            times.append((span, max(0, span.t1_ns - max(span.t0_ns, free))))
            free = max(free, span.t1_ns)
    return times
