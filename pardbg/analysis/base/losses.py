"""The loss of each step, from logged values, hooks and the job's output."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View, per_store, per_view
from pardbg.analysis.base.printed import GENERIC, GIVEN, Printed, printed_losses
from pardbg.analysis.base.rank_columns import Columns, Joined, Rows
from pardbg.analysis.base.run import rehearsed
from pardbg.store.process import Process
from pardbg.store.table import Array
from pardbg_agent import wire

MANY_STEPS: Final = 1 << 20
HISTORY: Final = 512
LOSS_NAMES: Final = ("loss", "train/loss", "train_loss")
_INFERRED: Final = int(wire.Flag.INFERRED)
_ACTIVITY: Final = ("phase", "action")
"""Tables of activity other than ops: programs average losses over ranks just before logging."""
BACKWARD: Final = "backward"
"""Source of a loss: the scalar passed to ``backward()``."""
SCHEDULE: Final = "schedule"
"""Source of a loss: a framework's schedule."""
LOGGED: Final = "logged"
"""Source of a loss: ``pardbg_agent.log``."""
PRINTED: Final = "printed"
_BEHIND: Final = 1 << 62
_COMPARED: Final = 16
"""Number of newest printed steps whose losses are compared with those that hooks saw."""
_LEAST_COMPARED: Final = 3
_ROUNDED: Final = 0.01
"""Maximum deviation of seen / printed losses from their median, as a share, to be constant."""
_OF_MOVE: Final = 0.125
"""Maximum deviation as a share of the printed losses' change: constants fit anything."""
_OTHER_UNIT: Final = 0.05
"""… their median differs by more than this from 1."""
_SUM_OF: Final = 4
"""Sums over tokens are more than this many times their mean."""
_REPORTED: Final = 1
"""Value of a metric's second number for a loss that a schedule reported."""
Values = dict[int, list[tuple[int, float, str]]]
"""rank -> (time, value, source of the value), in order"""
Found = dict[int, tuple[float, str]]
"""step -> (loss, source of the loss)"""


@dataclass(frozen=True, slots=True)
class NotFinite:
    """A loss that has been NaN or infinite up to the cursor."""

    value: str
    """Value in words: ``NaN``, ``inf`` or ``-inf``."""
    since_step: int
    ranks: tuple[int, ...]
    """Ranks whose own loss was not finite in that step; empty if no rank's own loss is known."""


def value_text(value: float) -> str:
    """Return a non-finite value as ``NaN``, ``inf`` or ``-inf``."""
    return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"


def json_number(value: float | None) -> float | str | None:
    """Return the value for JSON; NaN and infinity, which JSON lacks, become text."""
    return value if value is None or math.isfinite(value) else value_text(value)


def not_finite(view: View, losses: Sequence[tuple[int, float]]) -> NotFinite | None:
    """Return the first step of a loss that is still not finite; None while the newest of ``losses``
    (step, value) is finite. A rank's own loss is the scalar passed to ``backward()``, or its first
    value in a step."""
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
    """Return step -> ranks whose own loss in it is not finite."""
    found: dict[int, list[int]] = {}
    for step, by_rank in _values(view, first, last).items():
        own = {
            rank: next((value for _, value, by in values if by == BACKWARD), values[0][1])
            for rank, values in by_rank.items()
        }
        ranks = [rank for rank, value in own.items() if not math.isfinite(value)]
        if ranks:
            found[step] = ranks
    return found


def own_losses(view: View, first: int, last: int) -> dict[int, dict[int, float]]:
    """Return step -> rank -> the scalar of its last backward, or its schedule's loss."""
    return {
        step: {rank: each[-1] for rank, each in by_rank.items()}
        for step, by_rank in each_own_loss(view, first, last).items()
    }


def each_own_loss(view: View, first: int, last: int) -> dict[int, dict[int, tuple[float, ...]]]:
    """Return step -> rank -> losses of all its backwards, in order: a GAN has two."""
    found = {
        step: {
            rank: tuple(value for _, value, by in values if by != LOGGED)
            for rank, values in by_rank.items()
        }
        for step, by_rank in _values(view, first, last).items()
    }
    return {step: {rank: each for rank, each in of.items() if each} for step, of in found.items()}


@per_view
def loss_history(view: View) -> tuple[tuple[int, float], ...]:
    """Return (step, loss) of the recent steps, oldest first. A finite loss of a step that has not
    ended is left out, as it may be partial."""
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
    """Return the source of the losses: LOGGED, SCHEDULE, BACKWARD, or PRINTED and the program that
    prints them; empty if no loss is known."""
    history = loss_history(view)
    if not history:
        return ""
    printed = _printed(view)
    if printed is not None:
        source = "" if printed.source in (GENERIC, GIVEN) else f" by {printed.source}"
        unit = f"; hooks saw {printed.times:.4g} times that" if printed.times else ""
        return PRINTED + source + unit
    return seen_losses(view, history[-1][0], history[-1][0])[history[-1][0]][1]


def losses_by_step(view: View, first: int, last: int) -> dict[int, float]:
    """Return step -> loss, closed steps cached; none of rehearsals, whose losses are arbitrary. A
    printed loss gives way to a non-finite one that backward began from: Transformers' Trainer
    prints 0, or a mean of the others, for it."""
    if rehearsed(view):
        return {}
    printed, seen = _printed(view), seen_losses(view, first, last)
    if printed is None:
        return {step: loss for step, (loss, _) in seen.items()}
    said = {step: loss for step, loss in printed.losses.items() if first <= step <= last}
    scaled = seen.items() if printed.times else ()
    broken = {
        step: loss for step, (loss, by) in seen.items()
        if by == BACKWARD and not math.isfinite(loss)
    }  # fmt: skip
    return {step: loss / printed.times for step, (loss, _) in scaled} | said | broken


@per_view
def _printed(view: View) -> Printed | None:
    """Return the printed losses, unless losses seen by hooks are better. Order of precedence:
    values that the program logs, the given pattern, a schedule's report, a framework's line for
    each step, the scalar passed to backward; fall back to any output line that looks like a loss. A
    seen loss that differs from the lines by a constant factor (a sum over tokens, a share of a
    batch) is the same loss in another unit."""
    ended, rank = newest_ended(view), min(view.ranks, default=None)
    if ended is None or rank is None:
        return None
    process = view.ranks[rank]
    printed = printed_losses(view, ended + 1, lambda: _begins(view, process))
    if printed is None:
        return None
    seen = seen_losses(view, max(0, ended - 1), ended)
    by = {source for _, source in seen.values()}
    if LOGGED in by:
        return None
    if not by or printed.source == GIVEN:
        return printed
    if times := _times(view, printed):
        return replace(printed, times=times)
    each = len(printed.losses) >= ended  # the last one may be on its way
    known = printed.source != GENERIC or _sums(view, printed)
    return printed if each and by == {BACKWARD} and known else None


def _sums(view: View, printed: Printed) -> bool:
    """Return whether seen losses are many times the printed ones in each of the last steps, though
    by no one factor: sums over unlike numbers of tokens. A running mean would be near them."""
    pairs = _pairs(view, printed)
    return len(pairs) == _COMPARED and all(seen > _SUM_OF * said > 0 for seen, said in pairs)


def _pairs(view: View, printed: Printed) -> list[tuple[float, float]]:
    """Return (what was seen, what was printed) in the last steps that were printed."""
    pairs = []
    for step in sorted(printed.losses)[-_COMPARED:]:  # thousands may lie between two
        said = printed.losses[step]
        for seen, _ in seen_losses(view, step, step).values():
            if said and math.isfinite(seen / said):
                pairs.append((seen, said))
    return pairs


def _mean_pairs(view: View, printed: Printed) -> list[tuple[float, float]]:
    """Return (mean of what was seen since the line before, what was printed) of the newest lines,
    where a line is printed every few steps."""
    steps = sorted(printed.losses)[-_COMPARED - 1 :]
    pairs = []
    for before, step in pairwise(steps):
        said = printed.losses[step]
        if steps[-1] - before > HISTORY or not said:
            continue
        seen = [loss for loss, _ in seen_losses(view, before + 1, step).values()]
        if len(seen) > 1 and math.isfinite(fmean(seen) / said):
            pairs.append((fmean(seen), said))
    return pairs


def _times(view: View, printed: Printed) -> float:
    """Return the factor, other than 1, between seen and printed losses of the last printed steps,
    or between the means of those since the line before; 0 if there is none, or a rank's own are
    printed."""
    times = _factor(_pairs(view, printed)) or _factor(_mean_pairs(view, printed))
    return 0.0 if times and _of_one_rank(view, printed) else times


def _of_one_rank(view: View, printed: Printed) -> bool:
    """Return whether a rank's own losses were printed lately: many programs print rank 0's."""
    steps = sorted(printed.losses)[-_LEAST_COMPARED:]
    own = [own_losses(view, step, step).get(step, {}) for step in steps]
    said = [printed.losses[step] for step in steps]
    return any(np.allclose([by.get(rank, math.nan) for by in own], said, _ROUNDED, 0)
               for rank in own[-1])  # fmt: skip


def _factor(pairs: Sequence[tuple[float, float]]) -> float:
    if len(pairs) < _LEAST_COMPARED:
        return 0.0
    times, lines = median(seen / said for seen, said in pairs), [said for _, said in pairs]
    most = min(_ROUNDED, _OF_MOVE * (max(lines) - min(lines)) / abs(lines[0])) * times
    constant = all(abs(seen / said - times) < most for seen, said in pairs)
    return times if constant and abs(times - 1) > _OTHER_UNIT else 0.0


def seen_losses(view: View, first: int, last: int) -> Found:
    """Return step -> loss as logged or seen by hooks, with its source."""
    cache = view.memo("losses")
    seen: dict[int, tuple[float, str] | None] = view.local.setdefault("losses seen", {})
    newest, oldest = newest_step(view, "metric") or 0, _oldest_kept(view)
    found: Found = {}
    wanted = []
    if last - first > MANY_STEPS:  # step numbers chosen by the program: read existing ones only
        return _of_steps(view, _values(view, first, last))
    for step in range(first, last + 1):
        known: tuple[int, tuple[float, str]] | None = cache.get((view.epoch, step))
        if known is not None and known[0] <= view.t_ns:
            found[step] = known[1]
        elif (loss := seen.get(step)) is not None:
            found[step] = loss
        elif step not in seen and step >= oldest:
            wanted.append(step)
    if not wanted:
        return found
    end = wanted[-1] if wanted[-1] < newest - HISTORY else max(newest, wanted[-1])
    fresh = _of_steps(view, _values(view, wanted[0], end))
    seen.update((step, fresh.get(step)) for step in wanted)
    for step, known_loss in fresh.items():
        found[step] = known_loss
        if step < newest - 2:  # records of the last steps may still come
            # A value's step depends on all records so far, so it does not hold at earlier cursors.
            cache[view.epoch, step] = (view.t_ns, found[step])
    return {step: loss for step, loss in found.items() if first <= step <= last}


@per_view
def _oldest_kept(view: View) -> int:
    """Return the oldest step whose loss may be among the kept records (it is logged in its step or
    after its end): a viewer that joined late would search for older ones each time."""
    tables = [one for one in view.joined("metric").tables if len(one)] if view.store.live else []
    oldest = (int(one.col("step")[0]) if one.step_sorted else 0 for one in tables)
    return min(oldest, default=0) - 1


def _of_steps(view: View, gathered: dict[int, Values]) -> Found:
    """Return step -> loss. A scalar passed to backward on a rank that ends no steps while others do
    (a parameter server's worker) belongs to no step."""
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
            found[step] = _mean_of_ranks(own)
    return found


@per_view
def _without_steps(view: View) -> frozenset[int]:
    """Return the ranks that end no steps while others do."""
    counts = view.all("step").counts.tolist()
    none = {rank for rank, count in zip(view.ranks, counts, strict=True) if not count}
    return frozenset(none if len(none) < len(view.ranks) else ())


def _mean_of_ranks(by_rank: Values) -> tuple[float, str]:
    """Return (mean over ranks of their last value, its source). If some ranks logged a value, only
    theirs count: it may be a mean over ranks that hooks cannot know."""
    last = [values[-1] for values in by_rank.values()]
    if all(by == LOGGED for _, _, by in last):  # also of recordings that do not tell the two apart:
        logged = [values[-1][1] for values in by_rank.values() if len(values) > 1]
    else:
        logged = [value for _, value, by in last if by == LOGGED]
    by = LOGGED if logged else last[0][2]
    return fmean(logged or [value for _, value, _ in last]), by


def _values(view: View, first: int, last: int) -> dict[int, Values]:
    """Return step -> values of each rank, read once per view: the first caller asks for most."""
    low, high, widest = view.local.get("losses", (0, -1, {}))
    if low <= first <= last <= high:
        return {step: by_rank for step, by_rank in widest.items() if first <= step <= last}
    found = _logged(view, first, last)
    view.local["losses"] = first, last, found
    return found


def _logged(view: View, first: int, last: int) -> dict[int, Values]:
    """Return step -> values of all ranks. A value logged after a step's end, before any activity of
    the next, belongs to the ended step: programs log after ``optimizer.step()``."""
    names = ("step", "name_id", "t1_ns", "flags", "a", "b")
    rows = view.all("metric").of_steps(names, first, last + 1)
    found: dict[int, Values] = defaultdict(lambda: defaultdict(list))
    loss = np.isin(rows["who"] << 32 | rows["name_id"], _loss_ids(view))
    rows = {name: column[loss] for name, column in rows.items()}
    if not len(rows["step"]):
        return found
    steps = rows["step"].astype(np.int64)
    tables = [view.all(name) for name in _ACTIVITY]
    keys, times = _first_activity(tables, max(0, int(steps.min()) - 1), int(steps.max()))
    steps -= _late(rows, steps, keys, times) & (steps > 0)
    by = np.where(rows["b"] == _REPORTED, 1, 2) * ((rows["flags"] & _INFERRED) != 0)
    inside = np.flatnonzero((first <= steps) & (steps <= last))
    numbers = rows["a"].view("<f8")
    columns = (c[inside].tolist() for c in (steps, rows["who"], rows["t1_ns"], numbers, by))
    ranks, sources = list(view.ranks), (LOGGED, SCHEDULE, BACKWARD)
    for step, place, t_ns, value, source in zip(*columns, strict=True):
        found[step][ranks[place]].append((t_ns, value, sources[source]))
    return found


def _late(rows: Columns, steps: Array, keys: Array, times: Array) -> Array:
    """Return a mask of values that belong to the step before. For steps older than a rank's oldest
    kept activity, the majority of values of that kind decides."""
    who, wanted, inferred = rows["who"], rows["who"] << 32 | steps, (rows["flags"] & _INFERRED) != 0
    at = keys.searchsorted(wanted)
    known = keys[at] == wanted
    older = (keys[at] >> 32 == who) & ((at == 0) | (keys[at - 1] >> 32 != who)) & ~known
    late: Array = np.where(known, rows["t1_ns"] < times[at], ~older)
    for kind in (inferred, ~inferred):
        mostly = 2 * np.count_nonzero(late & known & kind) > np.count_nonzero(known & kind)
        late |= kind & older & mostly
    return late


def _begins(view: View, process: Process) -> dict[int, int]:
    """Return step -> begin of the process's first recorded activity in it, in ns."""
    tables = [Rows(Joined([process.table(name)], view.t_ns), view.t_ns) for name in _ACTIVITY]
    keys, times = _first_activity(tables, 0, MANY_STEPS)
    return dict(zip(keys[:-1].tolist(), times[:-1].tolist(), strict=True))


def _first_activity(tables: Sequence[Rows], first: int, last: int) -> tuple[Array, Array]:
    """Return (rank's place << 32 | step, begin of the first recorded activity in ns), sorted, with
    a sentinel key at the end."""
    parts = [rows.of_steps(("step", "t0_ns", "flags"), first, last) for rows in tables]
    keys = np.concatenate([part["who"] << 32 | part["step"] for part in parts])
    times, flags = (np.concatenate([part[name] for part in parts]) for name in ("t0_ns", "flags"))
    seen = np.flatnonzero((flags & _INFERRED) == 0)
    order = seen[np.argsort(keys[seen], kind="stable")]
    keys, times = np.append(keys[order], _BEHIND), np.append(times[order], 0)
    begins = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    return keys[begins], np.minimum.reduceat(times, begins)


@per_store(lambda view: (view.revision, tuple(view.ranks.values())), most=4)
def _loss_ids(view: View) -> Array:
    """Return rank's place << 32 | name id, for each rank's first known loss name only."""
    found = []
    for place, process in enumerate(view.ranks.values()):
        known = next((ids for name in LOSS_NAMES if (ids := process.ids(name))), ())
        found += [place << 32 | name_id for name_id in known]
    return np.array(found, np.int64)


def newest_ended(view: View) -> int | None:
    """Return the newest step that has ended on some rank."""
    return newest_step(view, "step")


@per_view
def newest_step(view: View, name: str) -> int | None:
    """Return the step of a table's newest records over all ranks; None without records."""
    steps = view.all(name).newest("step")
    return int(steps.max()) if len(steps) else None
