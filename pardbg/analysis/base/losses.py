"""The loss of each step, from what the program logged, hooks saw and the job printed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.base.printed import GENERIC, GIVEN, Printed, printed_losses
from pardbg.analysis.base.run import rehearsed
from pardbg.store.process import Process
from pardbg_agent import wire

MANY_STEPS: Final = 1 << 20
HISTORY: Final = 512
LOSS_NAMES: Final = ("loss", "train/loss", "train_loss")
_INFERRED: Final = int(wire.Flag.INFERRED)
_ACTIVITY: Final = ("phase", "action")
"""Not ops: programs average their loss over ranks just before they log it."""
BACKWARD: Final = "backward"
"""What says a loss: the scalar that backward began from, …"""
SCHEDULE: Final = "schedule"
"""… what a framework's schedule reported …"""
LOGGED: Final = "logged"
"""… or ``pardbg_agent.log``; else it is PRINTED."""
PRINTED: Final = "printed"
_REPORTED: Final = 1
"""In a metric's second number: a schedule reported it."""
Values = dict[int, list[tuple[int, float, str]]]
"""rank -> (time, value, what says it) in order"""
Found = dict[int, tuple[float, str]]
"""step -> (loss, what says it)"""


@dataclass(frozen=True, slots=True)
class NotFinite:
    """A loss that is NaN or infinite, and has been so up to the cursor."""

    value: str
    """``NaN``, ``inf`` or ``-inf``."""
    since_step: int
    ranks: tuple[int, ...]
    """Whose own loss was not finite in that step; empty where no rank's own is known."""


def value_text(value: float) -> str:
    """``NaN``, ``inf`` or ``-inf``."""
    return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"


def json_number(value: float | None) -> float | str | None:
    """The value for JSON, which has no number for NaN or infinity: they stand there as text."""
    return value if value is None or math.isfinite(value) else value_text(value)


def not_finite(view: View, losses: Sequence[tuple[int, float]]) -> NotFinite | None:
    """Since when the loss has not been finite, None while the newest of ``losses`` (step, value)
    is. A rank's own loss is what its backward began from, or its first value in a step."""
    if not losses or math.isfinite(losses[-1][1]):
        return None
    newest, value = losses[-1]
    since = next((step + 1 for step, loss in reversed(losses) if math.isfinite(loss)), 0)
    since = max(since, losses[0][0])
    found = _own(view, max(0, since - HISTORY), since)
    while found.get(since - 1):  # a rank's own went wrong before the loss that is shown
        since -= 1
    ranks = found.get(since) or _own(view, newest, newest).get(newest) or []
    return NotFinite(value_text(value), since, tuple(sorted(ranks)))


def _own(view: View, first: int, last: int) -> dict[int, list[int]]:
    """step -> ranks whose own loss in it is not finite."""
    found: dict[int, list[int]] = {}
    for step, by_rank in _gather(view, first, last).items():
        own = {
            rank: next((value for _, value, by in values if by == BACKWARD), values[0][1])
            for rank, values in by_rank.items()
        }
        ranks = [rank for rank, value in own.items() if not math.isfinite(value)]
        if ranks:
            found[step] = ranks
    return found


def loss_history(view: View) -> tuple[tuple[int, float], ...]:
    """(step, loss) of the last steps, oldest first. Of a step that has not ended only a loss that
    is no number counts: what is known of another is a part of it."""
    ended = newest_ended(view)
    newest = max((n for n in (newest_step(view, "metric"), ended) if n is not None), default=None)
    if newest is None:
        return ()
    losses = losses_by_step(view, max(0, newest - HISTORY + 1), newest)
    return tuple(
        (step, loss)
        for step, loss in sorted(losses.items())
        if ended is None or step <= ended or not math.isfinite(loss)
    )


def loss_source(view: View) -> str:
    """What says the losses: LOGGED, SCHEDULE, BACKWARD, or PRINTED and by what; empty where none
    is known."""
    history = loss_history(view)
    if not history:
        return ""
    printed = _printed(view)
    if printed is not None:
        return PRINTED if printed.source in (GENERIC, GIVEN) else f"{PRINTED} by {printed.source}"
    return _seen(view, history[-1][0], history[-1][0])[history[-1][0]][1]


def losses_by_step(view: View, first: int, last: int) -> dict[int, float]:
    """step -> loss; none of a rehearsal, where they are arbitrary. Closed steps are kept."""
    if rehearsed(view):
        return {}
    printed = _printed(view)
    if printed is not None:
        return {step: loss for step, loss in printed.losses.items() if first <= step <= last}
    return {step: loss for step, (loss, _) in _seen(view, first, last).items()}


@per_view
def _printed(view: View) -> Printed | None:
    """What the job prints, where it says more than what hooks saw. The program's own word comes
    first, then a pattern that was asked for, a schedule's report, a framework's line for each
    step, what backward began from; any line that looks like a loss is for want of all these."""
    ended, rank = newest_ended(view), min(view.ranks, default=None)
    if ended is None or rank is None:
        return None
    process = view.ranks[rank]
    printed = printed_losses(
        view, ended + 1, lambda: _first_activity(view, process, 0, MANY_STEPS)
    )  # fmt: skip
    if printed is None:
        return None
    seen = _seen(view, max(0, ended - 1), ended)
    by = {source for _, source in seen.values()}
    if LOGGED in by:
        return None
    if not by or printed.source == GIVEN:
        return printed
    each = len(printed.losses) >= ended  # the last one may be on its way
    return printed if each and by == {BACKWARD} and printed.source != GENERIC else None


def _seen(view: View, first: int, last: int) -> Found:
    """What the program logged and hooks saw."""
    cache = view.memo("losses")
    newest = newest_step(view, "metric") or 0
    found: Found = {}
    wanted = []
    if last - first > MANY_STEPS:  # numbers that the program chose: only what is there is looked at
        return _of_steps(view, _gather(view, first, last))
    for step in range(first, last + 1):
        known: tuple[int, tuple[float, str]] | None = cache.get((view.epoch, step))
        if known is not None and known[0] <= view.t_ns:
            found[step] = known[1]
        else:
            wanted.append(step)
    if not wanted:
        return found
    fresh = _of_steps(view, _gather(view, wanted[0], max(newest, wanted[-1])))
    for step, known_loss in fresh.items():
        found[step] = known_loss
        if step < newest - 2:  # records of the last steps may still come
            # Whose a value is rests on what else was seen by now: no good for an earlier cursor.
            cache[view.epoch, step] = (view.t_ns, found[step])
    return {step: loss for step, loss in found.items() if first <= step <= last}


def _of_steps(view: View, gathered: dict[int, Values]) -> Found:
    """One for each step. What backward began from on a rank that ends no steps while others do (a
    parameter server's workers) is of no step."""
    others = _without_steps(view)
    found = {}
    for step, by_rank in gathered.items():
        own = by_rank
        if others:
            own = {
                rank: values
                for rank, values in by_rank.items()
                if rank not in others or values[-1][2] != BACKWARD
            }
        if own:
            found[step] = _one(own)
    return found


@per_view
def _without_steps(view: View) -> frozenset[int]:
    """Ranks that end no steps while others do."""
    none = {rank for rank, process in view.ranks.items() if not view.visible(process, "step")}
    return frozenset(none if len(none) < len(view.ranks) else ())


def _one(by_rank: Values) -> tuple[float, str]:
    """Mean over ranks of their last value. Where some logged it themselves, theirs count: it may
    be a mean over ranks that the hooks cannot know."""
    last = [values[-1] for values in by_rank.values()]
    if all(by == LOGGED for _, _, by in last):  # also of recordings that do not tell the two apart:
        logged = [values[-1][1] for values in by_rank.values() if len(values) > 1]
    else:
        logged = [value for _, value, by in last if by == LOGGED]
    by = LOGGED if logged else last[0][2]
    return fmean(logged or [value for _, value, _ in last]), by


def _gather(view: View, first: int, last: int) -> dict[int, Values]:
    """step -> values. Read once for each view, where the first who asks wants the most."""
    low, high, widest = view.local.get("losses", (0, -1, {}))
    if low <= first <= last <= high:
        return {step: by_rank for step, by_rank in widest.items() if first <= step <= last}
    found: dict[int, Values] = defaultdict(lambda: defaultdict(list))
    for rank, process in view.ranks.items():
        for step, t_ns, value, by in _logged(view, process, first, last):
            if first <= step <= last:
                found[step][rank].append((t_ns, value, by))
    view.local["losses"] = first, last, found
    return found


def _logged(
    view: View, process: Process, first: int, last: int
) -> list[tuple[int, int, float, str]]:
    """(step, time, value, what says it). A value logged after a step's end and before the
    next one does anything is the ended step's: programs log after ``optimizer.step()``."""
    names = _loss_ids(process)
    if not names:
        return []
    table, visible = view.rows(process, "metric")
    rows = table.step_rows(first, last + 1, visible)
    if not len(rows):
        return []
    steps = table.col("step")[rows]
    begins = _first_activity(view, process, int(steps.min()), int(steps.max()))
    columns = (table.col(c)[rows].tolist() for c in ("step", "name_id", "t1_ns", "flags", "b"))
    numbers = table.col("a").view("<f8")[rows].tolist()
    return [
        (
            step - 1 if step > 0 and t1 < begins.get(step, t1 + 1) else step,
            t1,
            value,
            LOGGED if not flags & _INFERRED else SCHEDULE if b == _REPORTED else BACKWARD,
        )
        for step, name_id, t1, flags, b, value in zip(*columns, numbers, strict=True)
        if name_id in names
    ]


def _first_activity(view: View, process: Process, first: int, last: int) -> dict[int, int]:
    """step -> begin of the first thing that was seen to run in it."""
    begins: dict[int, int] = {}
    for name in _ACTIVITY:
        table, visible = view.rows(process, name)
        if not visible:
            continue
        rows = table.step_rows(first, last, visible)
        seen = (table.col("flags")[rows] & _INFERRED) == 0
        steps, times = table.col("step")[rows[seen]], table.col("t0_ns")[rows[seen]]
        if not len(steps):
            continue
        if not table.step_sorted:
            order = np.argsort(steps, kind="stable")
            steps, times = steps[order], times[order]
        at = np.flatnonzero(np.r_[True, steps[1:] != steps[:-1]])
        earliest = np.minimum.reduceat(times, at)
        for step, t0 in zip(steps[at].tolist(), earliest.tolist(), strict=True):
            begins[step] = min(t0, begins.get(step, t0))
    return begins


def _loss_ids(process: Process) -> set[int]:
    """Ids of the first known name for a loss; no other metric is taken for one."""
    for wanted in LOSS_NAMES:
        found = {name_id for name_id, name in process.names.items() if name == wanted}
        if found:
            return found
    return set()


def newest_ended(view: View) -> int | None:
    """The newest step that ended on some rank."""
    return newest_step(view, "step")


@per_view
def newest_step(view: View, name: str) -> int | None:
    """The step of the newest records of a table."""
    steps = []
    for process in view.ranks.values():
        table, visible = view.rows(process, name)
        if visible:
            steps.append(int(table.col("step")[visible - 1]))
    return max(steps, default=None)
