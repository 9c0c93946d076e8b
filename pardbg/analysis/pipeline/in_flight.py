"""Microbatches in flight: forwarded and not yet backwarded, and the activation bytes they keep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.pipeline.dependencies import parse
from pardbg.analysis.pipeline.pipelines import Layout, spans
from pardbg.analysis.pipeline.values import ActionSpan, PipelineRank, PipelineStep


def changes(row: Sequence[tuple[int, str]]) -> list[int]:
    """Return the change in microbatches in flight for each (stage, kind) of a row.

    A backward split in two frees the activations with W; an I alone frees them if the row has no W
    of its stage.
    """
    splits = {stage for stage, kind in row if kind == "W"}
    frees = {(stage, "W" if stage in splits else "I") for stage, _ in row}
    return [
        1 if kind == "F" else -1 if kind in ("B", "W") or (stage, kind) in frees else 0
        for stage, kind in row
    ]  # fmt: skip


def levels(row: Sequence[tuple[int, str]]) -> Iterator[dict[int, int]]:
    """Yield stage -> microbatches in flight after each (stage, kind) of a row: one dict."""
    now: dict[int, int] = defaultdict(int)
    for (stage, _), change in zip(row, changes(row), strict=True):
        now[stage] = max(0, now[stage] + change)
        yield now


def in_flight(row: Sequence[tuple[int, str]]) -> tuple[int, int, dict[int, int]]:
    """Return microbatches in flight after a row of (stage, kind): (end, peak, end per stage)."""
    peak, last = 0, dict[int, int]()
    for last in levels(row):
        peak = max(peak, sum(last.values()))
    return sum(last.values()), peak, dict(last)


def peak_size(row: Sequence[tuple[int, str]], sizes: Mapping[int, float]) -> float:
    """Return the peak size of microbatches in flight; ``sizes``: stage -> size of one."""
    return max((sum(n * sizes[at] for at, n in now.items() if n) for now in levels(row)), default=0)


def in_flight_bound(layout: Layout, rank: int) -> int | None:
    """Return the most microbatches in flight on a rank that follows its plan: m for GPipe, p -
    stage (at most m) for 1F1B. Durations do not matter: ranks run actions in the plan's order."""
    planned = [action for text in layout.order.get(rank, ()) if (action := parse(text))]
    return in_flight([(a.stage, a.kind) for a in planned])[1] if planned else None


_SAMPLED_BACK: Final = 1 << 14
"""Number of actions searched for a sampled size: one step in a hundred is sampled."""


def kept_bytes(view: View, rank: int, per_stage: Mapping[int, int]) -> int | None:
    """Return the bytes that microbatches of each stage keep; None: a size is not known."""
    if not any(per_stage.values()):
        return 0
    sizes = sampled_sizes(view, rank)
    if any(count and stage not in sizes for stage, count in per_stage.items()):
        return None
    return sum(count * sizes.get(stage, 0) for stage, count in per_stage.items())


def peak_bytes(view: View, rank: int) -> int | None:
    """Return a rank's peak activation bytes in its newest two steps; None: it runs no pipeline, or
    a stage's size is not known."""
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
        most = max(most, int(peak_size([(s.stage, s.kind) for s in row], sizes)))
    return most


@per_view
def sampled_sizes(view: View, rank: int) -> dict[int, int]:
    """Return stage -> activation bytes of one microbatch, by the newest sampled forward."""
    process = view.ranks.get(rank)
    if process is None:
        return {}
    table, visible = view.rows(process, "action")
    begin = max(0, visible - _SAMPLED_BACK)
    rows = begin + np.flatnonzero(table.col("a")[begin:visible] > 0)
    return dict(table.tuples(rows, "stage", "a"))


def in_flight_curve(rank: PipelineRank) -> list[tuple[int, int]]:
    """Return (t_ns, microbatches in flight) at each change on a rank."""
    steps = zip(rank.actions, changes([(a.stage, a.kind) for a in rank.actions]), strict=True)
    moments = sorted((a.t1_ns, step) for a, step in steps if step and a.t1_ns is not None)
    levels = accumulate(step for _, step in moments)
    return [(t_ns, level) for (t_ns, _), level in zip(moments, levels, strict=True)]


@dataclass(frozen=True, slots=True)
class Peak:
    """First moment with the most microbatches in flight on a rank."""

    step: int
    action: str
    """Forward that ended at the peak, ``0F3``."""
    t_ns: int
    in_flight: tuple[str, ...]
    """Forwards whose activations were kept at the peak, including ``action``."""

    @property
    def number(self) -> int:
        return len(self.in_flight)

    @property
    def text(self) -> str:
        """Return text such as ``peak after 0F3 of step 8: 4 microbatches in flight (0F0 … 0F3)``"""
        first, last = self.in_flight[0], self.in_flight[-1]
        which = first if first == last else f"{first} … {last}"
        noun = "microbatch" if first == last else "microbatches"
        return (
            f"peak after {self.action} of step {self.step}: {len(self.in_flight)} {noun} "
            f"in flight ({which})"
        )


def peaks(step: PipelineStep) -> dict[int, Peak]:
    """Return rank -> its peak of microbatches in flight in a step."""
    return {row.rank: peak for row in step.ranks if (peak := _peak(step.step, row.actions))}


def _peak(step: int, actions: Sequence[ActionSpan]) -> Peak | None:
    """Return the first peak of a rank's actions; a split backward frees its activations with W."""
    row = sorted((a for a in actions if a.t1_ns is not None), key=lambda a: a.t1_ns or 0)
    splits = {a.stage for a in row if a.kind == "W"}
    kept: dict[tuple[int, int], str] = {}
    best: Peak | None = None
    for a in row:
        if a.kind == "F":
            kept[a.stage, a.microbatch] = a.text
            if best is None or len(kept) > len(best.in_flight):
                best = Peak(step, a.text, a.t1_ns or 0, tuple(kept.values()))
        elif a.kind in ("B", "W") or (a.kind == "I" and a.stage not in splits):
            kept.pop((a.stage, a.microbatch), None)
    return best
