"""Pipeline of a run over all its complete steps, for the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.holds import held_ns
from pardbg.analysis.base.intervals import clip, subtract, total
from pardbg.analysis.base.leads import waits_unseen
from pardbg.analysis.base.times import are_launches
from pardbg.analysis.comm.collective_columns import CollectiveColumns
from pardbg.analysis.comm.op_rows import CollectiveRow, P2PRow
from pardbg.analysis.findings.speed.windows import Window, overlaps_in, rows_in, window
from pardbg.analysis.pipeline.critical_path import (
    CriticalPath,
    MicrobatchWait,
    critical_path,
    microbatch_waits,
)
from pardbg.analysis.pipeline.dependencies import COMPUTE
from pardbg.analysis.pipeline.in_flight import Peak, peaks
from pardbg.analysis.pipeline.outlines import newest_step
from pardbg.analysis.pipeline.pipeline_steps import pipeline_step
from pardbg.analysis.pipeline.pipelines import Layout, layouts
from pardbg.analysis.pipeline.values import Cause, PipelineRank, PipelineStep

MAX_STEPS: Final = 500
"""Maximum number of newest steps that are analysed by action: some ms each."""
MAX_WAITS: Final = 16


@dataclass(frozen=True, slots=True)
class RankUse:
    """Busy and idle time of a rank as shares of the windows of several steps; they add up to 1."""

    rank: int
    busy: float
    idle: Mapping[Cause, float]
    max_in_flight: int
    in_flight_bound: int | None


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """Figures of a pipeline over ``steps``; medians leave out steps that the debugger held."""

    schedule: str
    num_stages: int
    num_microbatches: int
    num_older_steps: int
    """Number of older steps that are left out."""
    bubble_fraction: float | None
    implied_fraction: float | None
    bound_fraction: float | None
    stages: tuple[StageTime, ...]
    critical_path: CriticalPath | None
    waits: tuple[MicrobatchWait, ...]
    """Recurring waits of actions, the longest first, MAX_WAITS at most."""
    peaks: Mapping[int, Peak]
    """Rank -> its peak of microbatches in flight in the newest step."""
    steps: tuple[PipelineStep, ...]
    held_ns: Mapping[int, int]
    """step -> time that its ranks were held in it, in ns"""
    use: tuple[RankUse, ...]

    @property
    def free(self) -> tuple[PipelineStep, ...]:
        """Return the steps without holds; all steps if each was held."""
        return tuple(s for s in self.steps if not self.held_ns[s.step]) or self.steps

    @property
    def num_held(self) -> int:
        """Return the number of held steps, which ``free`` leaves out."""
        return len(self.steps) - len(self.free)

    @property
    def typical(self) -> PipelineStep | None:
        """Return the free step whose bubble is nearest the median, the newest of several."""
        middle = self.bubble_fraction
        if middle is None:
            return None
        return min(reversed(self.free), key=lambda step: abs((step.bubble_fraction or 0) - middle))


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
    bubbles = [s.bubble_fraction for s in free if s.bubble_fraction is not None]
    implied = [s.implied_fraction for s in free if s.implied_fraction is not None]
    timed = [] if are_launches(view) else free  # launches have an order, and no durations
    return PipelineReport(
        schedule=layout.plan.schedule if layout.plan is not None else "",
        num_stages=layout.num_stages,
        num_microbatches=layout.num_microbatches,
        num_older_steps=max(0, (newest_step(view, layout) or 0) - MAX_STEPS),
        bubble_fraction=median(bubbles) if bubbles else None,
        implied_fraction=median(implied) if implied else None,
        bound_fraction=steps[-1].bound_fraction if steps else None,
        stages=stage_times(timed),
        critical_path=usual_path(timed, layout.num_stages),
        waits=microbatch_waits(timed)[:MAX_WAITS],
        peaks=peaks(free[-1]) if free else {},
        steps=tuple(steps),
        held_ns=held,
        use=_use(timed),
    )


def complete_steps(view: View, layout: Layout) -> list[PipelineStep]:
    """Return the last complete steps of the pipeline, oldest first, MAX_STEPS at most."""
    newest = newest_step(view, layout)
    if newest is None:
        return []
    steps = (
        pipeline_step(view, layout, step) for step in range(max(0, newest - MAX_STEPS), newest + 1)
    )
    return [step for step in steps if step is not None and step.complete]


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
            {cause: sum(row.idle_ns[cause] for row in rows) / window for cause in rows[0].idle_ns},
            max(row.max_in_flight for row in rows),
            rows[-1].in_flight_bound,
        )
        for rank, rows in by_rank.items()
    )


LAST: Final = 64
"""Number of newest complete steps over which stage times are taken."""
MAX_RANKS: Final = 256


@dataclass(frozen=True, slots=True)
class StageTime:
    """Time of one kind of action of a stage."""

    stage: int
    kind: str
    rank: int
    number: int
    median_ns: int
    low_ns: int
    """10th percentile of the times, in ns."""
    high_ns: int
    """90th percentile of the times, in ns."""


@dataclass(frozen=True, slots=True)
class RankOverlap:
    """Collectives of a rank in a typical step (medians over the last steps), in ns."""

    rank: int
    exposed_ns: int
    """Data moved and the rank stood still; a lower bound with ``is_bound``."""
    hidden_ns: int
    """Data moved behind compute; an upper bound with ``is_bound``."""
    waiting_ns: int
    """Time in which the rank waited for ranks that had yet to arrive, in ns."""
    waited_for_ns: int
    """Time that other ranks, summed, waited for this rank as the last to arrive, in ns."""
    is_bound: bool = False
    """Whether streams of its device may have waited unseen."""
    is_most: bool = False
    """Whether ``waited_for_ns`` has, too, what the others computed meanwhile: of so many ranks."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bandwidth of collectives of one kind and size class."""

    group: str
    op: str
    up_to_bytes: int
    """Size class: more than half of this, up to this many bytes."""
    number: int
    transfer_ns: int
    """Median of last completion - last arrival, in ns."""
    busbw_gbps: float | None


def stage_times(steps: Sequence[PipelineStep]) -> tuple[StageTime, ...]:
    """Return the time of each kind of action of each stage, over the last LAST steps."""
    taken: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    for step in steps[-LAST:]:
        for row in step.ranks:
            for action in row.actions:
                if action.kind in COMPUTE and action.t1_ns is not None:
                    taken[action.stage, action.kind, row.rank].append(action.t1_ns - action.t0_ns)
    return tuple(
        StageTime(stage, kind, rank, len(times), *_spread(times))
        for (stage, kind, rank), times in sorted(taken.items())
    )


def _spread(times: list[int]) -> tuple[int, int, int]:
    """Return (median, 10th percentile, 90th percentile)."""
    times = sorted(times)
    last = len(times) - 1
    return round(median(times)), times[last // 10], times[last - last // 10]


def usual_path(steps: Sequence[PipelineStep], num_stages: int) -> CriticalPath | None:
    """Return the critical path of the step of median length among the last LAST; None: no steps."""
    recent = sorted(steps[-LAST:], key=lambda step: (step.t1_ns - step.t0_ns, step.step))
    return critical_path(recent[(len(recent) - 1) // 2], num_stages) if recent else None


def rank_overlaps(view: View) -> tuple[RankOverlap, ...]:
    """Return each rank's overlap figures over the recent steps that all ranks ended. Beyond
    MAX_RANKS only the ranks that others waited for most. Empty with too few steps, and for host
    times in a run on a device."""
    looked_at = window(view)
    if looked_at is None or are_launches(view):
        return ()
    ranks = sorted(looked_at.spans[looked_at.steps[-1]])
    few = len(ranks) <= MAX_RANKS
    caused = _caused(view, looked_at, ranks) if few else _late(rows_in(view, looked_at))
    waited_for = {rank: median(caused[rank, step] for step in looked_at.steps) for rank in ranks}
    overlaps = []
    for rank in sorted(sorted(ranks, key=lambda rank: -waited_for[rank])[:MAX_RANKS]):
        parts = overlaps_in(view, looked_at, rank)
        overlaps.append(
            RankOverlap(
                rank=rank,
                exposed_ns=round(median(p.exposed_ns for p in parts)),
                hidden_ns=round(median(p.hidden_ns for p in parts)),
                waiting_ns=round(median(p.waiting_ns for p in parts)),
                waited_for_ns=round(waited_for[rank]),
                is_bound=waits_unseen(view, view.ranks[rank], looked_at.steps),
                is_most=not few,
            )
        )
    return tuple(overlaps)


def _caused(view: View, looked_at: Window, ranks: Iterable[int]) -> Mapping[tuple[int, int], int]:
    """Return (rank, step) -> ns that others were held up until it came. Of several ops that hold a
    rank up at once, the one to which the last rank comes latest counts."""
    rows, found = rows_in(view, looked_at), defaultdict[tuple[int, int], int](int)
    came, row_of = rows.parts["issued_ns"], rows.row_of
    last = np.maximum.reduceat(came, rows.starts) if len(rows) else came
    for rank in ranks:
        own = np.flatnonzero(rows.parts["rank"] == rank)
        own = own[np.argsort(-last[row_of[own]], kind="stable")]
        of = rows.of["step"][row_of[own]], rows.of["last_rank"][row_of[own]]
        for part in overlaps_in(view, looked_at, rank):
            mine = np.flatnonzero(of[0] == part.step)
            left = list(part.waits)
            spans = zip(came[own[mine]].tolist(), last[row_of[own[mine]]].tolist(), strict=True)
            for culprit, span in zip(of[1][mine].tolist(), spans, strict=True):
                found[culprit, part.step] += total(clip(left, *span))
                left = subtract(left, [span])
    return found


def _late(rows: CollectiveColumns) -> Mapping[tuple[int, int], int]:
    """Return (rank, step) -> ns, summed over ops and other ranks, from their arrivals to its."""
    found: dict[tuple[int, int], int] = defaultdict(int)
    names = ("last_rank", "step", "wait_ns")
    for rank, step, ns in zip(*(rows.of[name].tolist() for name in names), strict=True):
        found[rank, step] += ns
    return found


def bandwidths(rows: Iterable[CollectiveRow]) -> tuple[Bandwidth, ...]:
    """Return the bandwidth of matched collectives by group, op and size class (a power of two)."""
    classes: dict[tuple[str, str, int], list[CollectiveRow]] = defaultdict(list)
    for row in rows:
        if row.verdict == "matched" and row.transfer_ns is not None and row.bytes > 0:
            classes[row.group, row.op, 1 << (row.bytes - 1).bit_length()].append(row)
    found = []
    for (group, op, up_to), members in sorted(classes.items()):
        rates = [row.busbw_gbps for row in members if row.busbw_gbps is not None]
        transfer = round(median(row.transfer_ns or 0 for row in members))
        found.append(Bandwidth(group, op, up_to, len(members), transfer,
                              median(rates) if rates else None))  # fmt: skip
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Messages:
    """Medians over collectives of one group and op, or over messages of one edge."""

    name: tuple[str, str]
    """(group, op), or (source, destination)"""
    number: int
    bytes: int | float
    total_bytes: int
    skew_ns: float | None
    wait_ns: float | None
    transfer_ns: float | None
    busbw_gbps: float | None
    num_odd: int
    """Number of ops that are not matched."""


def by_op(rows: Iterable[CollectiveRow]) -> list[Messages]:
    """Return medians by group and op, the most frequent first."""
    found: dict[tuple[str, str], list[CollectiveRow]] = defaultdict(list)
    for row in rows:
        found[row.group, row.op].append(row)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return [
        _messages(name, ops, _middle(op.skew_ns for op in ops), _middle(op.wait_ns for op in ops),
                  _middle(op.busbw_gbps for op in ops))
        for name, ops in ordered
    ]  # fmt: skip


def by_edge(rows: Iterable[P2PRow]) -> list[Messages]:
    """Return medians by source and destination, in order of rank."""
    found: dict[tuple[int, int], list[P2PRow]] = defaultdict(list)
    for row in rows:
        found[row.src, row.dst].append(row)
    return [
        _messages((str(a), str(b)), ops, wait=_middle(op.waited_ns for op in ops))
        for (a, b), ops in sorted(found.items())
    ]


def _messages(
    name: tuple[str, str], ops: Sequence[CollectiveRow] | Sequence[P2PRow],
    skew: float | None = None, wait: float | None = None, busbw: float | None = None,
) -> Messages:  # fmt: skip
    return Messages(
        name, len(ops), median(op.bytes for op in ops), sum(op.bytes for op in ops), skew, wait,
        _middle(op.transfer_ns for op in ops), busbw, sum(op.verdict != "matched" for op in ops),
    )  # fmt: skip


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
