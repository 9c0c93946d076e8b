"""A run's pipeline over all its complete steps, for the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from pardbg.analysis.answers.report_tables import StageTime, stage_times, usual_path
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.holds import held_ns
from pardbg.analysis.pipeline.critical_path import CriticalPath
from pardbg.analysis.pipeline.layout import Layout, layouts
from pardbg.analysis.pipeline.observed import CAUSES, Cause, PipelineRank, PipelineStep
from pardbg.analysis.pipeline.peaks import MicrobatchWait, Peak, microbatch_waits, peaks
from pardbg.analysis.pipeline.schedule import newest_step, pipeline_step

MAX_STEPS: Final = 500
"""Newest steps whose pipeline is split up action by action: some ms each."""
MAX_WAITS: Final = 16


@dataclass(frozen=True, slots=True)
class RankUse:
    """Where a rank's time went, as shares of the window of several steps; they add up to 1."""

    rank: int
    busy: float
    idle: Mapping[Cause, float]
    max_in_flight: int
    in_flight_bound: int | None


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """Figures of ``steps``; medians are over those that the debugger did not hold."""

    schedule: str
    num_stages: int
    num_microbatches: int
    num_older_steps: int
    """Too many to be in here."""
    bubble_fraction: float | None
    implied_fraction: float | None
    bound_fraction: float | None
    stages: tuple[StageTime, ...]
    critical_path: CriticalPath | None
    waits: tuple[MicrobatchWait, ...]
    """The longest first, MAX_WAITS at most."""
    peaks: Mapping[int, Peak]
    """By rank, in the newest step."""
    steps: tuple[PipelineStep, ...]
    held_ns: Mapping[int, int]
    """step -> how long its ranks were held in it."""
    use: tuple[RankUse, ...]

    @property
    def free(self) -> tuple[PipelineStep, ...]:
        """The steps that were not held; all where each was."""
        return tuple(s for s in self.steps if not self.held_ns[s.step]) or self.steps

    @property
    def num_held(self) -> int:
        """Steps that ``free`` leaves out."""
        return len(self.steps) - len(self.free)

    @property
    def typical(self) -> PipelineStep | None:
        """The free step whose bubble is nearest the median, the newest of such."""
        middle = self.bubble_fraction
        if middle is None:
            return None
        return min(reversed(self.free), key=lambda step: abs(step.bubble_fraction - middle))


def pipeline_report(view: View) -> PipelineReport | None:
    """Return the first pipeline's figures; None without a pipeline."""
    found = layouts(view)
    if not found:
        return None
    layout = found[0]
    steps = complete_steps(view, layout)
    held = {s.step: held_ns(view, layout.ranks, s.t0_ns, s.t1_ns + s.held_ns) for s in steps}
    # Time under the debugger says nothing about the schedule: such steps are listed, not averaged.
    free = [step for step in steps if not held[step.step]] or steps
    implied = [s.implied_fraction for s in free if s.implied_fraction is not None]
    return PipelineReport(
        schedule=layout.plan.schedule if layout.plan is not None else "",
        num_stages=layout.num_stages,
        num_microbatches=layout.num_microbatches,
        num_older_steps=max(0, (newest_step(view, layout) or 0) - MAX_STEPS),
        bubble_fraction=median(s.bubble_fraction for s in free) if free else None,
        implied_fraction=median(implied) if implied else None,
        bound_fraction=steps[-1].bound_fraction if steps else None,
        stages=stage_times(free),
        critical_path=usual_path(free, layout.num_stages),
        waits=microbatch_waits(free)[:MAX_WAITS],
        peaks=peaks(free[-1]) if free else {},
        steps=tuple(steps),
        held_ns=held,
        use=_use(free),
    )


def complete_steps(view: View, layout: Layout) -> list[PipelineStep]:
    """The last steps whose pipeline ran to its end, oldest first, MAX_STEPS at most."""
    newest = newest_step(view, layout)
    if newest is None:
        return []
    made = (
        pipeline_step(view, layout, step) for step in range(max(0, newest - MAX_STEPS), newest + 1)
    )
    return [step for step in made if step is not None and step.complete]


def _use(steps: list[PipelineStep]) -> tuple[RankUse, ...]:
    window = sum(step.window_ns for step in steps)
    if not window:
        return ()
    by_rank: dict[int, list[PipelineRank]] = defaultdict(list)
    for step in steps:
        for row in step.ranks:
            by_rank[row.rank].append(row)
    return tuple(
        RankUse(
            rank,
            sum(row.busy_ns for row in rows) / window,
            {cause: sum(row.idle_ns[cause] for row in rows) / window for cause in CAUSES},
            max(row.max_in_flight for row in rows),
            rows[-1].in_flight_bound,
        )
        for rank, rows in by_rank.items()
    )
