"""Measured costs of a pipeline step: the durations that what-if gives to other schedules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Final

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.steps import last_step_rows
from pardbg.analysis.pipeline.dependencies import COMPUTE, Action, producer, source
from pardbg.analysis.pipeline.in_flight import sampled_sizes
from pardbg.analysis.pipeline.outlines import newest_step
from pardbg.analysis.pipeline.pipeline_steps import pipeline_step
from pardbg.analysis.pipeline.pipelines import Layout
from pardbg.analysis.pipeline.play import Between
from pardbg.analysis.pipeline.values import ActionSpan, PipelineStep
from pardbg.analysis.whatif.backward_split import Row, Seen, Split, as_they_run, filled, split_of
from pardbg.analysis.whatif.playout import Outside, messages

LAST: Final = 16
"""Number of steps that are measured."""
WARM_UP: Final = 2
"""Number of a run's first steps that are left out if there are others."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Costs of one step with its own jitter, which a mean would hide and a schedule feels."""

    step: int
    observed_ns: int
    times: Mapping[tuple[int, str], Row]
    """(stage; F, B, I or W) -> durations; the first stage's I and W as on any other stage."""
    between: Between

    def cut(self, num_stages: int, split: Split, equal: bool = False) -> dict[tuple[int, str], Row]:
        """Return the same model cut into another number of stages. Time counts as spread evenly
        within a stage or, if ``equal``, over the whole model."""
        before = 1 + max(stage for stage, _ in self.times)
        made = dict(self.times)
        if before != num_stages or equal:
            made = {}
            for kind in COMPUTE:
                by_mb = zip(*(self.times[stage, kind] for stage in range(before)), strict=True)
                rows = [recut(row, num_stages, equal) for row in by_mb]
                for stage, row in enumerate(zip(*rows, strict=True)):
                    made[stage, kind] = row
        as_they_run(made, split)
        return made


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of the last complete steps of one pipeline."""

    num_ranks: int
    num_stages: int
    num_microbatches: int
    steps: tuple[StepCosts, ...]
    activations: Mapping[int, int]
    """stage -> bytes that one microbatch keeps; empty if not sampled."""
    split: Split
    outside: Outside

    @property
    def step_ns(self) -> float:
        return median(step.observed_ns for step in self.steps)

    def stage_ns(self) -> list[float]:
        """Return forward and backward time of one microbatch by stage, in ns: median over steps."""
        return [
            median(fmean(s.times[stage, "F"]) + fmean(s.times[stage, "B"]) for s in self.steps)
            for stage in range(self.num_stages)
        ]

    def cut_activations(self, num_stages: int, equal: bool = False) -> list[float] | None:
        """Return bytes per microbatch of each stage, cut as the times are; None if not sampled."""
        if len(self.activations) < self.num_stages:
            return None
        row = [float(self.activations[stage]) for stage in range(self.num_stages)]
        return recut(row, num_stages, equal)


def recut(row: Sequence[float], num: int, equal: bool) -> list[float]:
    """Return ``row`` (a density per cell) as ``num`` sums over equal lengths, or equal sums."""
    if equal:
        return [sum(row) / num] * num
    width = len(row) / num
    made = []
    for at in range(num):
        lo, hi = at * width, (at + 1) * width
        made.append(sum(v * max(0.0, min(hi, i + 1) - max(lo, i)) for i, v in enumerate(row)))
    return made


def costs(view: View, layout: Layout, until: int | None = None) -> Costs | None:
    """Return costs over the last complete steps up to ``until``; None: a stage was not seen."""
    steps = _measured(view, layout, until)
    if not steps:
        return None
    seen = [_durations(step) for step in steps]
    split = split_of(seen, layout.num_stages)
    between = [_between(step, layout) for step in steps]
    counted = _counted(view, layout)
    outside = _outside(layout, steps, counted, median(ns for one in between for ns in one.hops))
    made = []
    for step, taken, one in zip(steps, seen, between, strict=True):
        times = filled(taken, layout.num_stages, layout.num_microbatches, split)
        if times is not None:
            length = _length(step, counted.get(step.step, ()), outside.together)
            made.append(StepCosts(step.step, length, times, one))
    if not made:
        return None
    return Costs(
        num_ranks=len(layout.ranks),
        num_stages=layout.num_stages,
        num_microbatches=layout.num_microbatches,
        steps=tuple(made),
        activations={s: n for r in layout.ranks for s, n in sampled_sizes(view, r).items()},
        split=split,
        outside=outside,
    )


def _length(step: PipelineStep, counted: Sequence[tuple[int, int]], together: bool) -> int:
    """Return the duration of a step, in ns. Ranks that do not wait for each other at its end
    overlap two steps: then the window is longer than the step."""
    took = [t1 - t0 for t0, t1 in counted]
    window = step.t1_ns - step.t0_ns
    if together or not took:
        return max([window, *took])
    return round(fmean(took))


def _measured(view: View, layout: Layout, until: int | None) -> list[PipelineStep]:
    newest = newest_step(view, layout) if until is None else until
    if newest is None:
        return []
    made = []
    for step in range(newest, max(-1, newest - 2 * LAST), -1):
        found = pipeline_step(view, layout, step)
        if found is None or not found.complete or found.held_ns:
            continue
        made.append(found)
        if len(made) == LAST:
            break
    warm = [step for step in made if step.step >= WARM_UP]
    return (warm or made)[::-1]


def _durations(step: PipelineStep) -> Seen:
    """Return (stage, kind, microbatch) -> duration in ns."""
    return {
        (span.stage, span.kind, span.microbatch): span.t1_ns - span.t0_ns
        for row in step.ranks
        for span in row.actions
        if span.kind in COMPUTE and span.t1_ns is not None
    }


def _between(step: PipelineStep, layout: Layout) -> Between:
    """Return times between actions. Hop: mean of begin - producer's end after a wait for a rank.
    Gap: begin - own last end if the input was there for longer, as a line over messages."""
    ended = {a.text: (a.t1_ns, row.rank) for row in step.ranks for a in row.actions}
    for row in step.ranks:  # a pair's outputs are sent when both are done
        ended.update({one: ended[other] for one, other in row.pairs if other in ended})
    follows: list[tuple[int, int, int | None, int]] = []
    for row, compute in zip(step.ranks, _computes(step), strict=True):
        counts = _messages(compute, row.pairs, layout)
        for (before, action), count in zip(pairwise(compute), counts, strict=True):
            ready = _ready(action, row.rank, ended, layout.num_stages)
            follows.append((before.t1_ns or 0, action.t0_ns, ready, count))
    hops = [begin - ready for own, begin, ready, _ in follows if ready and own < ready <= begin]
    hop = fmean(hops) if hops else 0.0
    gaps = [
        (count, begin - own) for own, begin, ready, count in follows
        if ready is None or ready + hop <= own
    ]  # fmt: skip
    _, slope = line(gaps)
    rest = tuple(ns - slope * count for count, ns in gaps)
    return Between(tuple(map(float, hops)) or (0.0,), rest or (0.0,), slope)


def _computes(step: PipelineStep) -> list[list[ActionSpan]]:
    """Return each rank's ended compute actions; the time between them is the host's, or FSDP's."""
    return [
        [a for a in row.actions if a.kind in COMPUTE and a.t1_ns is not None] for row in step.ranks
    ]


def _messages(
    compute: Sequence[ActionSpan], pairs: Sequence[tuple[str, str]], layout: Layout
) -> list[int]:
    """Return the number of messages of a rank between each two of its actions."""
    second = dict(pairs)
    units: list[list[Action]] = []
    for span in compute:
        action = Action(span.stage, span.kind, span.microbatch)
        if units and second.get(units[-1][-1].text) == action.text:
            units[-1].append(action)
        else:
            units.append([action])
    counts: list[int] = []
    for before, after in zip([[], *units], units, strict=False):
        counts.append(messages(before, after, layout.stage_rank, layout.num_stages))
        counts += [0] * (len(after) - 1)
    return counts[1:]


def line(points: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Return the least-squares line (value at 0, slope), neither below 0."""
    if not points:
        return 0.0, 0.0
    x0, y0 = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - x0) ** 2 for x, _ in points)
    slope = sum((x - x0) * (y - y0) for x, y in points) / spread if spread else 0.0
    slope = max(0.0, min(slope, y0 / x0)) if x0 else 0.0
    return y0 - slope * x0, slope


def _ready(
    action: ActionSpan, rank: int, ended: Mapping[str, tuple[int | None, int]], num_stages: int
) -> int | None:
    """Return when ``action``'s input from another rank was ready, in ns; None: it needs none."""
    needed = source(action.text, num_stages, ended)
    return None if needed is None or ended[needed][1] == rank else ended[needed][0]


def _outside(
    layout: Layout, steps: Sequence[PipelineStep],
    counted: Mapping[int, Sequence[tuple[int, int]]], hop: float,
) -> Outside:  # fmt: skip
    """Return the time between two steps, and whether ranks wait for each other at a step's end.

    They do not if a rank's step ended while another still computed: then it is the host time from a
    rank's last action to its next step's first, where that one needs nothing of another rank.
    """
    early = [
        min(t1 for _, t1 in counted[step.step]) + hop < step.t1_ns for step in steps
        if len(counted.get(step.step, ())) == len(layout.ranks)
    ]  # fmt: skip
    together = 2 * sum(early) <= len(early)
    between = [] if together else [
        row[0].t0_ns - (last[-1].t1_ns or 0)
        for before, after in pairwise(steps)
        if after.step == before.step + 1 and len(after.ranks) == len(before.ranks)
        for last, row in zip(_computes(before), _computes(after), strict=True)
        if last and row and producer(row[0].text, layout.num_stages) is None
    ]  # fmt: skip
    if between:
        return Outside(max(0.0, median(between)), together=False)
    return Outside(median(
        _length(step, counted.get(step.step, ()), True) - (step.t1_ns - step.t0_ns)
        for step in steps
    ))  # fmt: skip


def _counted(view: View, layout: Layout) -> dict[int, list[tuple[int, int]]]:
    """Return step -> (begin, end) on each rank of the pipeline that counts steps, in ns."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for rank in layout.ranks:
        process = view.ranks.get(rank)
        for step, t0, t1 in last_step_rows(view, process, 2 * LAST + 8) if process else ():
            found[step].append((t0, t1))
    return found
