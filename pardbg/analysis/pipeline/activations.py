"""Bytes of activations that a pipeline's rank keeps: microbatches in flight times the size of one.

The agent measures what a stage's forward saves in sampled steps only; microbatches are alike, so
the newest size of each stage stands for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.pipeline.bounds import in_flight
from pardbg.analysis.pipeline.layout import spans

_SAMPLED_BACK: Final = 1 << 14
"""Actions to look back for a sampled size: one step in a hundred is sampled."""


def kept_bytes(view: View, rank: int, per_stage: Mapping[int, int]) -> int | None:
    """Of so many microbatches per stage; None where a stage's size is not known."""
    if not any(per_stage.values()):
        return 0
    sizes = _sizes(view, rank)
    if any(count and stage not in sizes for stage, count in per_stage.items()):
        return None
    return sum(count * sizes.get(stage, 0) for stage, count in per_stage.items())


def peak_bytes(view: View, rank: int) -> int | None:
    """The most that were kept at a time in the newest two steps; None: the rank runs no pipeline,
    or a stage's size is not known."""
    sizes, process = _sizes(view, rank), view.ranks.get(rank)
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


def _sizes(view: View, rank: int) -> dict[int, int]:
    """stage -> bytes of the newest sampled forward."""
    key = ("sizes", rank)
    if key not in view.local:
        view.local[key] = _newest_sizes(view, rank)
    sizes: dict[int, int] = view.local[key]
    return sizes


def _newest_sizes(view: View, rank: int) -> dict[int, int]:
    process = view.ranks.get(rank)
    if process is None:
        return {}
    table, visible = view.rows(process, "action")
    begin = max(0, visible - _SAMPLED_BACK)
    rows = begin + np.flatnonzero(table.col("a")[begin:visible] > 0)
    columns = (table.col(c)[rows].tolist() for c in ("stage", "a"))
    return dict(zip(*columns, strict=True))
