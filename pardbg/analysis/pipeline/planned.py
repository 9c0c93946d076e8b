"""What a drawn schedule has beside the actions seen: where the planned ones would lie in time, the
critical path, and how many microbatches were in flight.

The plan is a list of actions per rank; run with the mean durations measured in a step and with
free communication it becomes comparable with what ran. That is the *implied* schedule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pardbg.analysis.pipeline.critical_path import CriticalPath, critical_path
from pardbg.analysis.pipeline.dependencies import COMPUTE, Action, parse
from pardbg.analysis.pipeline.observed import PipelineRank, PipelineStep, PipelineView
from pardbg.analysis.pipeline.play import compute_plan, simulate

_UNKNOWN_NS = 1e6
"""Length of an action nobody has seen run: it only has to be visible."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned action, ns from the step's begin."""

    text: str
    stage: int
    kind: str
    microbatch: int
    t0_ns: float
    t1_ns: float


@dataclass(frozen=True, slots=True)
class ScheduleDetail:
    """Of the step that a pipeline page shows."""

    boxes: Mapping[int, tuple[Planned, ...]]
    """rank -> its plan in time."""
    path: CriticalPath | None
    """Critical path of the last complete step; None before the first."""
    in_flight: Mapping[int, tuple[tuple[int, int], ...]]
    """rank -> (t_ns, microbatches forwarded and not yet backwarded) at each change."""


def schedule_detail(view: PipelineView | None) -> ScheduleDetail | None:
    """None where there is no pipeline, or no action of it has run."""
    step = (view.step or view.last_complete) if view is not None else None
    if view is None or step is None:
        return None
    measured = view.last_complete or step
    return ScheduleDetail(
        lay_out(step, measured, view.num_stages),
        None
        if view.times == "host"
        else critical_path(step if step.complete else measured, view.num_stages),
        {rank.rank: tuple(in_flight_curve(rank)) for rank in step.ranks},
    )


def mean_durations(step: PipelineStep) -> dict[tuple[int, str], float]:
    """Mean ns per (stage, kind), and per (-1, kind) over all stages."""
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
    """Return the step's plan in time, with ``measured``'s durations; per rank, in order."""
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
    """A plan that cannot run (a partial one): its actions one after another, for their order."""
    return {
        rank: tuple((text, at * _UNKNOWN_NS, (at + 1) * _UNKNOWN_NS) for at, text in enumerate(row))
        for rank, row in order.items()
    }


def _planned(text: str, t0_ns: float, t1_ns: float) -> Planned:
    action = parse(text) or Action(-1, "X", -1)
    return Planned(text, action.stage, action.kind, action.microbatch, t0_ns, t1_ns)


def makespan(boxes: Mapping[int, Sequence[Planned]]) -> float:
    """ns from the first planned begin to the last planned end."""
    return max((row[-1].t1_ns for row in boxes.values() if row), default=0.0)


def in_flight_curve(rank: PipelineRank) -> list[tuple[int, int]]:
    """Return (t_ns, microbatches forwarded and not yet backwarded) at each change."""
    splits = {action.stage for action in rank.actions if action.kind == "W"}
    changes = []
    for action in rank.actions:
        # A backward in two parts lets its activations go with W.
        last = "W" if action.stage in splits else "I"
        if action.t1_ns is not None and action.kind in ("F", "B", last):
            changes.append((action.t1_ns, 1 if action.kind == "F" else -1))
    level, curve = 0, []
    for t_ns, change in sorted(changes):
        level += change
        curve.append((t_ns, level))
    return curve
