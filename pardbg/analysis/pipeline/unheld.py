"""A held step, laid out as it would have run without the holds.

Each action keeps its own time, without the holds within it. It begins when its rank is free and its
input is there, plus the time from there to its real begin in which no rank was held: the tensor's
transfer and the host. So a stepped step compares with one that ran freely: same order, same
durations, no lock step. Times count from the step's real begin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.holds import stalls, unheld_ns, was_held
from pardbg.analysis.base.intervals import Interval, total, union
from pardbg.analysis.pipeline.dependencies import COMPUTE, source
from pardbg.analysis.pipeline.values import ActionSpan

Rows = Mapping[int, Sequence[ActionSpan]]


@dataclass(frozen=True, slots=True)
class LaidOut:
    """Rows of a step without the holds."""

    rows: dict[int, list[ActionSpan]]
    ways: dict[int, list[Interval]]
    """rank -> stretches from the moment that rank and input are ready to the action's begin"""
    now_ns: int
    """End of the last action so far, in ns."""
    held_ns: int
    """Time by which the last action ends earlier than with the holds, in ns; at least 1."""


def lay_out_unheld(view: View, rows: Rows, num_stages: int, window: Interval) -> LaidOut | None:
    """Return the rows laid out without holds; None if no rank was held in the window."""
    if not was_held(view, *window):
        return None
    made: dict[int, list[ActionSpan]] = {rank: [] for rank in rows}
    ways: dict[int, list[Interval]] = {rank: [] for rank in rows}
    real: dict[str, ActionSpan] = {}
    laid: dict[str, ActionSpan] = {}
    last: dict[int, str] = {}
    now = window[0]
    for span in sorted((s for row in rows.values() for s in row), key=lambda s: s.t0_ns):
        came = [last[span.rank]] if span.rank in last else []
        needed = _made(span, num_stages, real)
        came += [needed] if needed is not None else []
        begin, way = _begin(view, span, came, real, laid, window[0])
        ended = window[1] if span.t1_ns is None else span.t1_ns
        end = begin + max(0, unheld_ns(view, span.rank, span.t0_ns, ended))
        moved = replace(span, t0_ns=begin, t1_ns=None if span.t1_ns is None else end)
        made[span.rank].append(moved)
        if way and needed is not None:
            ways[span.rank].append((begin - way, begin))
        if span.kind in COMPUTE:
            real[span.text], laid[span.text] = span, moved
            last[span.rank] = span.text
            now = max(now, end)
    apart = {rank: union(spans) for rank, spans in ways.items()}
    return LaidOut(made, apart, now, max(1, window[1] - now))


def _made(span: ActionSpan, num_stages: int, real: Mapping[str, ActionSpan]) -> str | None:
    """Return the action of another rank whose output ``span`` took; None: it took none."""
    found = source(span.text, num_stages, real)
    return None if found is None or real[found].rank == span.rank else found


def _begin(
    view: View,
    span: ActionSpan,
    came: Sequence[str],
    real: Mapping[str, ActionSpan],
    laid: Mapping[str, ActionSpan],
    origin_ns: int,
) -> tuple[int, int]:
    """Return (begin without holds, time from the arrival of its input to that begin), in ns."""
    known = [text for text in came if real[text].t1_ns is not None]
    ready = max((real[text].t1_ns or 0 for text in known), default=origin_ns)
    free = max((laid[text].t1_ns or 0 for text in known), default=origin_ns)
    if span.t0_ns <= ready:  # two actions at once, or clocks that differ
        return max(origin_ns, free - (ready - span.t0_ns)), 0
    ranks = {span.rank, *(real[text].rank for text in known)}
    held = union(part for rank in ranks for part in stalls(view, rank, ready, span.t0_ns))
    way = max(0, span.t0_ns - ready - total(held))
    return free + way, way
