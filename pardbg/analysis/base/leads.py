"""How far a rank's host is ahead of its device, and where the device stood for want of launches.

The lead is the time from the launch of work on the host to its begin on the device. Where it is
about zero, the device took up the work as soon as it was launched: nothing else was queued.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.base.intervals import Interval, clip, total, union
from pardbg.analysis.base.steps import last_step_rows
from pardbg.store.process import Process
from pardbg.store.table import Array
from pardbg_agent.wire import Flag, Lane

_STEPS: Final = 12
_TAIL: Final = 4096
_FAR: Final = 1 << 62
_OFFSETS_NS: Final = 200_000
"""A clock's offset may change by less between a launch and its times."""
_STEP: Final = int(Lane.STEP)
_ASYNC: Final = int(Flag.ASYNC)


def host_bound(view: View, rank: int, window: Interval) -> list[Interval]:
    """Return stretches of a window in which the host had yet to launch what the device came to
    next, the begin of a span or its end. Between spans the device stood for want of launches;
    inside of one it may have had work, so there it is an upper bound."""
    process = view.ranks.get(rank)
    if process is None or not process.device_times.seen:
        return []
    times, leads = _moments(view, process, window)
    launched = np.minimum(times - leads, times)[1:]
    late = np.flatnonzero(launched > times[:-1])
    found = zip(times[late].tolist(), launched[late].tolist(), strict=True)
    return union(clip(found, *window))


def _moments(view: View, process: Process, window: Interval) -> tuple[Array, Array]:
    """Return (begins and ends of spans, arrivals and ends of ops, on the device; leads at them), by
    time. Before the end of an op the device may have waited for that."""
    table, visible = view.rows(process, "reached")
    when = table.when[:visible]
    whole = window[0], window[1] + table.longest_ns
    part = slice(*when.searchsorted(whole).tolist())
    inside = table.col("peer")[part] != _STEP
    t0, t1, a, b = (table.col(name)[part][inside] for name in ("t0_ns", "t1_ns", "a", "b"))
    ends = [_ends(view, process, name, window) for name in ("done", "done_p2p")]
    times = np.concatenate([t0, t1, *ends, [window[0]]])
    leads = np.concatenate([a, b, np.full(len(times) - 2 * len(t0), _FAR)])
    order = np.lexsort((leads, times))
    return times[order], leads[order]


def _ends(view: View, process: Process, name: str, window: Interval) -> Array:
    table, visible = view.rows(process, name)
    when = table.when[:visible]
    return when[when.searchsorted(window[0]) : when.searchsorted(window[1], side="right")]


def sync_ops(view: View, rank: int, window: Interval) -> list[Interval]:
    """Return stretches in which a rank's device was in ops that ran on the stream they were issued
    on: what is queued behind them waits."""
    process, found = view.ranks[rank], []
    table, visible = view.rows(process, "issue")
    done, num_done = view.rows(process, "done")
    whole = window[0] - done.longest_ns, window[1]
    part = slice(*table.when[:visible].searchsorted(whole).tolist())
    last = slice(*done.when[:num_done].searchsorted(whole).tolist())
    ends = {(gid, seq): t1 for gid, seq, t1 in done.tuples(last, "group_id", "seq", "t1_ns")}
    for gid, seq, t0, flags in table.tuples(part, "group_id", "seq", "t0_ns", "flags"):
        if not flags & _ASYNC:
            found.append((t0, ends.get((gid, seq), window[1])))
    return union(clip(found, *window))


class Ahead(NamedTuple):
    """How far a rank's host was ahead of its device in its last steps."""

    lead_ns: int
    """Median over actions, phases and ops, of the last step."""
    host_bound: float
    """Share of the steps in which the host had yet to launch what the device came to next: an upper
    bound of the time that the device stood for that."""


def ahead(view: View, rank: int) -> Ahead | None:
    """Return a rank's lead as of its last steps; None where no times of its device are known."""
    process = view.ranks.get(rank)
    if process is None or not process.device_times.seen:
        return None
    steps = last_step_rows(view, process, _STEPS)
    known = view.memo("ahead"), (process.proc, *steps[-1:])
    if steps and known[1] not in known[0]:
        known[0][known[1]] = _ahead(view, rank, process, steps)
    return known[0].get(known[1])


def _ahead(
    view: View, rank: int, process: Process, steps: Sequence[tuple[int, int, int]]
) -> Ahead | None:
    table, rows = view.step_rows(process, "reached", steps[-1][0])
    leads = table.col("a")[rows][table.col("peer")[rows] != _STEP]
    whole = sum(end - begin for _, begin, end in steps)
    if not len(leads) or whole <= 0:
        return None
    late = sum(total(host_bound(view, rank, (begin, end))) for _, begin, end in steps)
    return Ahead(max(0, int(np.median(leads))), late / whole)


class Standing(NamedTuple):
    """Where a device stands that comes no further."""

    since_ns: int
    """The last thing it is known to have come to."""
    name: str
    """The oldest launch beyond that: a phase, an action or an op."""
    step: int


def reached_ns(view: View, rank: int) -> int | None:
    """Return when a rank's device came to something last; None: its times are not known."""
    process = view.ranks[rank]
    return view.newest_ns(process, ("reached",)) if process.device_times.seen else None


@per_view
def standing(view: View, rank: int) -> Standing | None:
    """Return where a rank's device stands; None: it has come to all that was launched, or its
    times are not known."""
    process = view.ranks.get(rank)
    if process is None or not process.device_times.seen:
        return None
    launched, visible = view.rows(process, "launch")
    reached, of = view.rows(process, "reached")
    if not visible or not of:
        return None
    tail, done = slice(max(0, visible - _TAIL), visible), slice(max(0, of - _TAIL), of)
    newest = int((reached.col("t0_ns")[done] - reached.col("a")[done]).max())
    t0 = launched.col("t0_ns")[tail]
    left = np.flatnonzero((t0 > newest + _OFFSETS_NS) & (launched.col("peer")[tail] != _STEP))
    if not len(left):
        return None
    row = tail.start + int(left[np.argmin(t0[left])])
    name, step = (int(launched.col(column)[row]) for column in ("name_id", "step"))
    return Standing(int(reached.when[of - 1]), process.name(name), step)
