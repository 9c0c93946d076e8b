"""What the schedule itself implies: its bubble, how many activations it keeps, and their bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.pipeline.dependencies import COMPUTE, Action, parse
from pardbg.analysis.pipeline.layout import Layout, spans
from pardbg.analysis.pipeline.observed import ActionSpan
from pardbg.analysis.pipeline.play import simulate

_ONE_STAGE = ("gpipe", "1f1b")
_LOOPED = ("interleaved1f1b", "loopedbfs")


def schedule_name(name: str) -> str:
    """Return ``Schedule1F1B``, and a framework's ``Megatron 1F1B``, as ``1f1b``."""
    return (
        name.lower().rpartition(" ")[2].removeprefix("schedule").replace("_", "").replace("-", "")
    )


def bound_fraction(layout: Layout) -> float | None:
    """Bubble with equal stages: (p-1)/(m+p-1) for GPipe and 1F1B, (p-1)/(v·m+p-1) interleaved;
    also where a program passes microbatches on by itself, as their order does not change it.

    None for schedules without such a formula.
    """
    num_ranks, num_microbatches = len(layout.ranks), layout.num_microbatches
    if layout.chain is not None:
        return (num_ranks - 1) / (num_microbatches + num_ranks - 1)
    if layout.plan is None:
        return None
    name = schedule_name(layout.plan.schedule)
    if name in _ONE_STAGE:
        virtual = 1
    elif name in _LOOPED:
        virtual = layout.plan.num_virtual
    else:
        return None
    below = virtual * num_microbatches + num_ranks - 1
    return (num_ranks - 1) / below if below > 0 else None


def in_flight(
    actions: Iterable[tuple[int, str]], sizes: Mapping[int, int] | None = None
) -> tuple[int, int, dict[int, int]]:
    """Return (at the end, peak, at the end per stage) of microbatches forwarded and not yet
    backwarded, after a row of (stage, kind). With ``sizes`` (bytes of a stage's microbatch) the
    peak is in bytes.

    A backward split in two frees the activations with W; an I alone counts where no W is in the
    row.
    """
    row = list(actions)
    splits = {stage for stage, kind in row if kind == "W"}
    now: dict[int, int] = defaultdict(int)
    peak = 0
    for stage, kind in row:
        if kind == "F":
            now[stage] += 1
        elif kind in ("B", "W") or (kind == "I" and stage not in splits):
            now[stage] = max(0, now[stage] - 1)
        held = now.values() if sizes is None else (n * sizes[at] for at, n in now.items() if n)
        peak = max(peak, sum(held))
    return sum(now.values()), peak, dict(now)


def in_flight_bound(layout: Layout, rank: int) -> int | None:
    """Most microbatches a rank keeps if it follows its plan: m for GPipe, p - stage (at most m)
    for 1F1B. A rank runs its actions in the plan's order, so no durations are needed."""
    planned = [action for text in layout.order.get(rank, ()) if (action := parse(text))]
    return in_flight((a.stage, a.kind) for a in planned)[1] if planned else None


def implied_fraction(layout: Layout, rows: Mapping[int, Sequence[ActionSpan]]) -> float | None:
    """Bubble of the plan run with the measured mean duration per (stage, action) and free
    communication. None while an action of the plan has not been measured."""
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
    """Return each finished compute action with its ns; of two that overlap (a pair of DualPipeV
    with a function of its own) the later one counts from the end of the earlier, so that the sum is
    the time the rank was busy."""
    made: list[tuple[ActionSpan, int]] = []
    free = 0
    for span in row:
        if span.t1_ns is not None and span.kind in COMPUTE:
            made.append((span, max(0, span.t1_ns - max(span.t0_ns, free))))
            free = max(free, span.t1_ns)
    return made


_SAMPLED_BACK: Final = 1 << 14
"""Actions to look back for a sampled size: one step in a hundred is sampled."""


def kept_bytes(view: View, rank: int, per_stage: Mapping[int, int]) -> int | None:
    """Of so many microbatches per stage; None where a stage's size is not known."""
    if not any(per_stage.values()):
        return 0
    sizes = sampled_sizes(view, rank)
    if any(count and stage not in sizes for stage, count in per_stage.items()):
        return None
    return sum(count * sizes.get(stage, 0) for stage, count in per_stage.items())


def peak_bytes(view: View, rank: int) -> int | None:
    """Return the most that were kept at a time in the newest two steps; None: the rank runs no
    pipeline, or a stage's size is not known."""
    sizes, process = sampled_sizes(view, rank), view.ranks.get(rank)
    if not sizes or process is None:
        return None
    table, visible = view.rows(process, "action")
    newest = int(table.col("step")[visible - 1])
    most = 0
    for step in {max(0, newest - 1), newest}:
        row = [span for span in spans(view, rank, step) if span.t1_ns is not None]
        row.sort(key=lambda span: span.t1_ns or 0)
        if any(span.stage not in sizes for span in row if span.kind == "F"):
            return None
        most = max(most, in_flight(((s.stage, s.kind) for s in row), sizes)[1])
    return most


@per_view
def sampled_sizes(view: View, rank: int) -> dict[int, int]:
    """stage -> activation bytes of one microbatch, by the newest sampled forward."""
    process = view.ranks.get(rank)
    if process is None:
        return {}
    table, visible = view.rows(process, "action")
    begin = max(0, visible - _SAMPLED_BACK)
    rows = begin + np.flatnonzero(table.col("a")[begin:visible] > 0)
    return dict(table.tuples(rows, "stage", "a"))
