"""Outlines of a pipeline's steps: completeness, window, bubble and each rank's work. Used for many
steps at once; ``pipeline_steps`` has all details for a few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pardbg.analysis.base.asof import View, per_store
from pardbg.analysis.base.intervals import Interval, clip, total
from pardbg.analysis.base.times import are_launches
from pardbg.analysis.pipeline.dependencies import COMPUTE
from pardbg.analysis.pipeline.idle import busy_intervals
from pardbg.analysis.pipeline.implied import implied_fraction
from pardbg.analysis.pipeline.pipelines import Layout, running_action, step_rows
from pardbg.analysis.pipeline.unheld import LaidOut, lay_out_unheld
from pardbg.analysis.pipeline.values import ActionSpan

_AT_ONCE: Final = 64
"""Number of steps whose rows are counted at once."""
_NEVER_ENDS: Final = 1 << 62
Rows = Mapping[int, Sequence[ActionSpan]]


@dataclass(frozen=True, slots=True)
class Outline:
    """Figures of a complete step, without holds."""

    step: int
    t0_ns: int
    t1_ns: int
    """End of the window, which is from first compute begin to last compute end of all ranks."""
    busy_ns: Mapping[int, int]
    """rank -> time in compute actions, in ns."""
    bubble_fraction: float
    held_ns: int = 0


@dataclass(frozen=True, slots=True)
class Begun:
    """Rows of a step that has begun."""

    rows: Rows
    window: Interval
    complete: bool
    laid: LaidOut | None
    """Step laid out without holds, as ``rows`` and ``window`` are then; None: not held."""


def begun(view: View, layout: Layout, step: int) -> Begun | None:
    """Return a step as of the cursor; None if no compute action of it has begun."""
    key = ("begun", layout.key, step)
    if key not in view.local:
        view.local[key] = _begun(view, layout, step)
    found: Begun | None = view.local[key]
    return found


def _begun(view: View, layout: Layout, step: int) -> Begun | None:
    rows: Rows = step_rows(view, layout, step)
    window = _window(rows, view.t_ns)
    if window is None:
        return None
    complete = _is_complete(view, layout, rows, step)
    laid = lay_out_unheld(view, rows, layout.num_stages, window)
    if laid is not None:
        rows, window = laid.rows, (window[0], laid.now_ns)
    return Begun(rows, window, complete, laid)


def step_outline(view: View, layout: Layout, step: int) -> Outline | None:
    """Return a complete step's figures; None: it is not complete, or the times of a run on a device
    are the host's."""
    if are_launches(view):
        return None
    cache = view.memo("outline")
    key = (layout.key, step)
    known: tuple[int, Outline, object] | None = cache.get(key)
    if (
        known is not None and known[0] <= view.t_ns
        and (known[2] is None or known[2] == _record_state(view, layout, step))
    ):  # fmt: skip
        return known[1]
    made = None if _is_under_way(view, layout, step) else _made(view, layout, step)
    newest = newest_step(view, layout) if made is not None else None
    if made is not None and newest is not None and step < newest:
        settled = step < newest - 1  # records of the last steps may still come
        state = None if settled else _record_state(view, layout, step)
        ended = max(made.t1_ns + made.held_ns, _all_ended_ns(view, layout, step))
        cache[key] = ended, made, state
    return made


def _made(view: View, layout: Layout, step: int) -> Outline | None:
    seen = begun(view, layout, step)
    if seen is None or not seen.complete:
        return None
    begin, end = seen.window
    busy = {
        rank: busy_ns(row, seen.window) for rank, row in seen.rows.items()
        if is_recorded(view, layout, rank, row, step)
    }  # fmt: skip
    if not busy:
        return None
    held = 0 if seen.laid is None else seen.laid.held_ns
    return Outline(step, begin, end, busy, bubble(list(busy.values()), seen.window), held)


def busy_ns(row: Sequence[ActionSpan], window: Interval) -> int:
    """Return a rank's time in compute actions within the window, in ns."""
    return total(clip(busy_intervals(row, window[1]), *window))


def bubble(busy: Sequence[int], window: Interval) -> float:
    """Return the share of the window, over all ranks, that is not spent in compute."""
    length = window[1] - window[0]
    return 1.0 - sum(busy) / (len(busy) * length) if length > 0 else 0.0


# More of the step may come: then its bubble is another one.
@per_store(lambda view, layout, step, bubble: (layout.key, step, bubble))
def implied(view: View, layout: Layout, step: int, bubble: float) -> float | None:
    """Return the implied bubble of a complete step whose bubble is ``bubble``; None: not known."""
    seen = begun(view, layout, step)
    return None if seen is None else implied_fraction(layout, seen.rows)


def newest_step(view: View, layout: Layout) -> int | None:
    """Return the newest step with an action begun at the cursor; None: no action has begun."""
    running = (running_action(view, rank) for rank in layout.ranks)
    steps = [last_step(view, layout), *(one[0] for one in running if one is not None)]
    return max((step for step in steps if step is not None), default=None)


def last_step(view: View, layout: Layout) -> int | None:
    """Return the newest step with an ended action; None: no action has ended."""
    steps = []
    for rank in layout.ranks:
        process = view.ranks.get(rank)
        if process is not None:
            table, visible = view.rows(process, layout.table)
            if visible:
                steps.append(int(table.col("step")[visible - 1]))
    return max(steps, default=None)


# -- which steps are complete, and recorded


def _window(rows: Rows, t_ns: int) -> Interval | None:
    compute = [s for row in rows.values() for s in row if s.kind in COMPUTE]
    if not compute:
        return None
    begin = min(s.t0_ns for s in compute)
    end = max(max(t_ns, s.t0_ns) if s.t1_ns is None else s.t1_ns for s in compute)
    return begin, end


def _is_complete(view: View, layout: Layout, rows: Rows, step: int) -> bool:
    """Return whether a step is over: all planned actions ended, or else (no plan, records lost)
    every rank ended the step.

    The first step of a chain is never complete, as the begin of its first forward was not seen.
    With a plan, a step that a process did not end before its own end is not complete either: an
    evaluation after the training, or a truncated step.
    """
    if any(s.t1_ns is None for row in rows.values() for s in row):
        return False
    if layout.chain is not None and any(
        _kinds(row, "F") < _kinds(row, "B") for row in rows.values()
    ):
        return False
    if layout.planned and all(
        sum(s.kind in COMPUTE for s in rows[rank]) >= len(layout.order[rank])
        for rank in layout.ranks
    ):
        return True
    return all(_ended_step(view, rank, step, by_end=not layout.planned) for rank in layout.ranks)


def _kinds(row: Sequence[ActionSpan], kind: str) -> int:
    return sum(span.kind == kind for span in row)


def is_recorded(
    view: View, layout: Layout, rank: int, row: Sequence[ActionSpan], step: int
) -> bool:
    """Return whether the records of a rank's step are whole. A rank with missing actions would be
    taken for idle; a finding names ranks with lost records."""
    process = view.ranks.get(rank)
    if process is None:
        return False
    if not process.lost(view.t_ns) and not process.missed_before:
        return True
    seen = sum(span.kind in COMPUTE for span in row)
    return seen >= max(1, len(layout.order.get(rank, ()))) or not _ended_step(view, rank, step)


def _ended_step(view: View, rank: int, step: int, by_end: bool = True) -> bool:
    """Return whether a rank ended a step or, if ``by_end``, its process ended."""
    return step <= _last_ended(view, rank, by_end)


def _last_ended(view: View, rank: int, by_end: bool) -> int:
    process = view.ranks.get(rank)
    if process is None or (by_end and view.proc_end(process) is not None):
        return _NEVER_ENDS
    table, visible = view.rows(process, "step")
    return int(table.col("step")[visible - 1]) if visible else -1


def _is_under_way(view: View, layout: Layout, step: int) -> bool:
    """Return whether some rank has too few rows for a complete step; quicker than reading them."""
    for rank in layout.ranks:
        process = view.ranks.get(rank)
        if process is None or _ended_step(view, rank, step, by_end=not layout.planned):
            continue
        rows = view.step_rows(process, layout.table, step)[1] if layout.planned else ()
        if not layout.planned or len(rows) < len(layout.order[rank]):
            return True
    return False


def _all_ended_ns(view: View, layout: Layout, step: int) -> int:
    """Return when the last rank ended the step, in ns; 0: no rank counts steps."""
    ended = 0
    for rank in layout.ranks:
        process = view.ranks.get(rank)
        if process is not None:
            table, rows = view.step_rows(process, "step", step)
            if len(rows):
                ended = max(ended, int(table.col("t1_ns")[rows].max()))
    return ended


# -- what a step's figures rest on


def _record_state(view: View, layout: Layout, step: int) -> object:
    """Return a value that stays equal until more of the step is recorded."""
    store = view.store
    return signature(view, layout, step) if store.live else (store.revision, store.part)


def signature(view: View, layout: Layout, step: int) -> bytes:
    """Return the row counts that a step's figures depend on: equal counts give equal figures."""
    first = step // _AT_ONCE * _AT_ONCE
    at = ("rows of steps", layout.key, first)
    if at not in view.local:
        view.local[at] = _row_counts(view, layout, first)
    counts: NDArray[np.int64] = view.local[at]
    return counts[:, step - first].tobytes()


def _row_counts(view: View, layout: Layout, first: int) -> NDArray[np.int64]:
    """Return, by step, each rank's visible rows of each table, and whether the rank ended it."""
    last = first + _AT_ONCE - 1
    steps, counts = np.arange(first, last + 1), []
    for rank in layout.ranks:
        process = view.ranks.get(rank)
        for name in (layout.table, "wait", "done_p2p", "issue_p2p", "held"):
            if process is None:
                counts.append(np.full(_AT_ONCE, -1))
                continue
            table, visible = view.rows(process, name)
            counts.append(table.rows_by_step(first, last, visible))
        # Without a plan, this completes it.
        counts.append(steps <= _last_ended(view, rank, by_end=True))
    return np.array(counts, np.int64)
