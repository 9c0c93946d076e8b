"""What a pipeline step costs, measured: the durations that what-if gives to other schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Final

from pardbg.analysis.actions import Layout
from pardbg.analysis.asof import View
from pardbg.analysis.dependencies import COMPUTE, producer, twin
from pardbg.analysis.holds import was_held
from pardbg.analysis.model import ActionSpan, PipelineStep
from pardbg.analysis.pipeline import newest_step, pipeline_step
from pardbg.analysis.steps import step_rows

LAST: Final = 16
"""Steps that are measured."""
WARM_UP: Final = 2
"""First steps of a run that are left out where others are there."""
HALF: Final = 0.5
"""Share of W in a backward where no run of it was seen apart from I."""
Seen = Mapping[tuple[int, str, int], int]
Row = tuple[float, ...]
"""ns per microbatch, 0 first"""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """One step as it ran: with its own jitter, which a mean would hide and a schedule feels."""

    step: int
    observed_ns: int
    times: Mapping[tuple[int, str], Row]
    """(stage, F, B, I or W)"""
    hop_ns: float
    """Mean, from the end of an action to the begin of the one on another rank that waited for
    it."""
    gap_ns: float
    """Mean between two actions of a rank of which neither waits."""

    def cut(self, num_stages: int, equal: bool = False) -> dict[tuple[int, str], Row]:
        """The same model in another number of stages. Time is taken as spread evenly within a
        stage, or (``equal``) over the whole model."""
        before = 1 + max(stage for stage, _ in self.times)
        if before == num_stages and not equal:
            return dict(self.times)
        made: dict[tuple[int, str], Row] = {}
        for kind in COMPUTE:
            by_mb = zip(*(self.times[stage, kind] for stage in range(before)), strict=True)
            rows = [recut(row, num_stages, equal) for row in by_mb]
            for stage, row in enumerate(zip(*rows, strict=True)):
                made[stage, kind] = row
        return made


@dataclass(frozen=True, slots=True)
class Costs:
    """The last complete steps of one pipeline."""

    num_ranks: int
    num_stages: int
    num_microbatches: int
    steps: tuple[StepCosts, ...]
    activations: Mapping[int, int]
    """stage -> bytes that one microbatch keeps; empty where not sampled."""
    weight_share: float
    """W / (I + W)."""
    split_measured: bool
    """I and W were seen apart; else ``weight_share`` is an assumption."""
    outside_ns: float
    """A step less its pipeline window, median: data, optimizer, the host."""

    @property
    def step_ns(self) -> float:
        return median(step.observed_ns for step in self.steps)

    def stage_ns(self) -> list[float]:
        """Forward and backward of one microbatch by stage, median over steps."""
        return [
            median(fmean(s.times[stage, "F"]) + fmean(s.times[stage, "B"]) for s in self.steps)
            for stage in range(self.num_stages)
        ]

    def cut_activations(self, num_stages: int, equal: bool = False) -> list[float] | None:
        """Bytes per microbatch of each stage, cut as the times are; None where not sampled."""
        if len(self.activations) < self.num_stages:
            return None
        row = [float(self.activations[stage]) for stage in range(self.num_stages)]
        return recut(row, num_stages, equal)


def recut(row: Sequence[float], num: int, equal: bool) -> list[float]:
    """``row`` (a density, a cell each) as ``num`` sums over equal lengths; or all the same."""
    if equal:
        return [sum(row) / num] * num
    width = len(row) / num
    made = []
    for at in range(num):
        lo, hi = at * width, (at + 1) * width
        made.append(sum(v * max(0.0, min(hi, i + 1) - max(lo, i)) for i, v in enumerate(row)))
    return made


def costs(view: View, layout: Layout, until: int | None = None) -> Costs | None:
    """Measured over the last complete steps, up to step ``until``. None while there is none, or
    where a stage was not seen."""
    steps = _measured(view, layout, until)
    if not steps:
        return None
    seen = [_durations(step) for step in steps]
    share, split = _weight_share(seen)
    lengths = {row.step: row.duration_ns for row in step_rows(view, 2 * LAST)}
    made, outside = [], []
    for step, taken in zip(steps, seen, strict=True):
        times = _filled(taken, layout.num_stages, layout.num_microbatches, share)
        if times is None:
            continue
        window = step.t1_ns - step.t0_ns
        length = max(window, lengths.get(step.step, 0))
        outside.append(length - window)
        made.append(StepCosts(step.step, length, times, *_between(step, layout)))
    if not made:
        return None
    return Costs(
        num_ranks=len(layout.ranks),
        num_stages=layout.num_stages,
        num_microbatches=layout.num_microbatches,
        steps=tuple(made),
        activations=_activations(view, layout),
        weight_share=share,
        split_measured=split,
        outside_ns=median(outside),
    )


def _measured(view: View, layout: Layout, until: int | None) -> list[PipelineStep]:
    newest = newest_step(view, layout) if until is None else until
    if newest is None:
        return []
    made = []
    for step in range(newest, max(-1, newest - 2 * LAST), -1):
        found = pipeline_step(view, layout, step)
        if found is None or not found.complete or was_held(view, found.t0_ns, found.t1_ns):
            continue
        made.append(found)
        if len(made) == LAST:
            break
    warm = [step for step in made if step.step >= WARM_UP]
    return (warm or made)[::-1]


def _durations(step: PipelineStep) -> Seen:
    """(stage, kind, microbatch) -> ns"""
    return {
        (span.stage, span.kind, span.microbatch): span.t1_ns - span.t0_ns
        for row in step.ranks
        for span in row.actions
        if span.kind in COMPUTE and span.t1_ns is not None
    }


def _weight_share(seen: Sequence[Seen]) -> tuple[float, bool]:
    """(W / (I + W) where both of a microbatch were seen, whether any were)."""
    first = weight = 0.0
    for times in seen:
        for (stage, kind, mb), ns in times.items():
            if kind == "W" and (stage, "I", mb) in times:
                weight += ns
                first += times[stage, "I", mb]
    return (weight / (first + weight), True) if first + weight > 0 else (HALF, False)


def _filled(
    seen: Seen, num_stages: int, num_microbatches: int, share: float
) -> dict[tuple[int, str], Row] | None:
    """F, B, I and W of each stage and microbatch; what was not seen follows from B = I + W."""
    filled: dict[tuple[int, str], Row] = {}
    for stage in range(num_stages):
        forwards, wholes, firsts, weights = [], [], [], []
        for mb in range(num_microbatches):
            forward, whole = seen.get((stage, "F", mb)), seen.get((stage, "B", mb))
            first, weight = seen.get((stage, "I", mb)), seen.get((stage, "W", mb))
            if forward is None or (whole is None and first is None):
                return None
            back = float(whole if whole is not None else 0)
            if first is not None:
                back = first + weight if weight is not None else first / max(1e-9, 1 - share)
            forwards.append(float(forward))
            wholes.append(back)
            firsts.append(float(first if first is not None else back * (1 - share)))
            weights.append(float(weight if weight is not None else back * share))
        for kind, row in zip("FBIW", (forwards, wholes, firsts, weights), strict=True):
            filled[stage, kind] = tuple(row)
    return filled


def _between(step: PipelineStep, layout: Layout) -> tuple[float, float]:
    """(hop, gap) of a step: mean of begin - producer's end where a rank waited for another, and of
    begin - own last end where its input had been there for longer than a hop."""
    ended = {a.text: (a.t1_ns, row.rank) for row in step.ranks for a in row.actions}
    for row in step.ranks:  # what an overlapped pair made is sent when both parts are done
        ended.update({one: ended[other] for one, other in row.pairs if other in ended})
    follows: list[tuple[int, int, int | None]] = []
    for row in step.ranks:
        compute = [a for a in row.actions if a.kind in COMPUTE and a.t1_ns is not None]
        for before, action in pairwise(compute):
            ready = _ready(action, row.rank, ended, layout.num_stages)
            follows.append((before.t1_ns or 0, action.t0_ns, ready))
    hops = [begin - ready for own, begin, ready in follows if ready and own < ready <= begin]
    hop = fmean(hops) if hops else 0.0
    gaps = [begin - own for own, begin, ready in follows if ready is None or ready + hop <= own]
    return hop, fmean(gaps) if gaps else 0.0


def _ready(
    action: ActionSpan, rank: int, ended: Mapping[str, tuple[int | None, int]], num_stages: int
) -> int | None:
    """When what ``action`` needs of another rank was done; None: it needs nothing of others."""
    needed = producer(action.text, num_stages)
    if needed is None:
        return None
    found = ended.get(needed) or ended.get(twin(needed) or "")
    return None if found is None or found[1] == rank else found[0]


def _activations(view: View, layout: Layout) -> dict[int, int]:
    """stage -> newest sampled bytes of one microbatch."""
    sizes: dict[int, int] = {}
    for rank in layout.ranks:
        process = view.ranks.get(rank)
        if process is None:
            continue
        table, visible = view.rows(process, "action")
        lo = max(0, visible - (1 << 14))
        rows = (table.col("a")[lo:visible] > 0).nonzero()[0] + lo
        columns = (table.col(c)[rows].tolist() for c in ("stage", "a"))
        sizes.update(zip(*columns, strict=True))
    return sizes
