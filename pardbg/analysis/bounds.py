"""What the schedule itself implies: its bubble and how many activations it keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from pardbg.analysis.actions import Layout
from pardbg.analysis.dependencies import COMPUTE, Action
from pardbg.analysis.model import ActionSpan
from pardbg.analysis.simulate import simulate

_ONE_STAGE = ("gpipe", "1f1b")
_LOOPED = ("interleaved1f1b", "loopedbfs")


def schedule_name(name: str) -> str:
    """``Schedule1F1B`` as ``1f1b``."""
    return name.lower().removeprefix("schedule").replace("_", "").replace("-", "")


def bound_fraction(layout: Layout) -> float | None:
    """Bubble with equal stages: (p-1)/(m+p-1) for GPipe and 1F1B, (p-1)/(v·m+p-1) interleaved.

    None for schedules without such a formula.
    """
    if layout.plan is None:
        return None
    name = schedule_name(layout.plan.schedule)
    num_ranks, num_microbatches = len(layout.ranks), layout.num_microbatches
    if name in _ONE_STAGE:
        virtual = 1
    elif name in _LOOPED:
        virtual = layout.plan.num_virtual
    else:
        return None
    below = virtual * num_microbatches + num_ranks - 1
    return (num_ranks - 1) / below if below > 0 else None


def in_flight_bound(layout: Layout, rank: int) -> int | None:
    """Most microbatches a stage keeps: m for GPipe, p - stage (at most m) for 1F1B."""
    if layout.plan is None:
        return None
    name = schedule_name(layout.plan.schedule)
    if name == "gpipe":
        return layout.num_microbatches
    stages = layout.stages(rank)
    if name == "1f1b" and len(stages) == 1:
        return min(layout.num_microbatches, layout.num_stages - stages[0])
    return None


def implied_fraction(
    layout: Layout, rows: Mapping[int, Sequence[ActionSpan]]
) -> float | None:
    """Bubble of the plan run with the measured mean duration per (stage, action) and free
    communication. None while an action of the plan has not been measured."""
    if not layout.planned:
        return None
    measured: dict[tuple[int, str], list[int]] = {}
    for row in rows.values():
        for span in row:
            if span.t1_ns is not None and span.kind in COMPUTE:
                measured.setdefault((span.stage, span.kind), []).append(span.t1_ns - span.t0_ns)
    means = {key: fmean(times) for key, times in measured.items()}

    def duration(_rank: int, action: Action) -> float:
        return means[action.stage, action.kind]

    try:
        simulated = simulate(layout.order, layout.num_stages, duration)
    except KeyError:
        return None
    return simulated.bubble_fraction if simulated is not None else None
