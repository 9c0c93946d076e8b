"""Lead of a rank's host over its device, and stretches in which the device lacked launches.

The lead is the time from the launch of work on the host to its begin on the device. Where it is
about zero, the device took up the work as soon as it was launched: nothing else was queued.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.base.intervals import Interval, clip, total, union
from pardbg.analysis.base.spans import records
from pardbg.analysis.base.steps import last_step_rows
from pardbg.analysis.base.times import times
from pardbg.store.process import Process
from pardbg.store.table import Array
from pardbg_agent.wire import WAIT_UNSHARD, Flag, Lane

_STEPS: Final = 12
_TAIL: Final = 4096
_FAR: Final = 1 << 62
_OFFSETS_NS: Final = 200_000
"""Maximum change of a clock's offset between a launch and its device times, in ns."""
_STEP: Final = int(Lane.STEP)
_ASYNC: Final = int(Flag.ASYNC)
_BY_HOST: Final = int(Flag.DONE_COMPLETED | Flag.DONE_WAITED)


def host_bound(view: View, rank: int, window: Interval) -> list[Interval]:
    """Return stretches of a window in which the host had yet to launch what the device reached next
    (begin or end of a span). Between spans the device stood for want of launches; inside a span it
    may have had work, so the stretch there is an upper bound."""
    process = view.ranks.get(rank)
    if process is None or not process.device_times.seen:
        return []
    times, leads = _moments(view, process, window)
    launched = np.minimum(times - leads, times)[1:]
    late = np.flatnonzero(launched > times[:-1])
    found = zip(times[late].tolist(), launched[late].tolist(), strict=True)
    return union(clip(found, *window))


def _moments(view: View, process: Process, window: Interval) -> tuple[Array, Array]:
    """Return (device times: begins and ends of spans, arrivals and ends of ops; leads at them), by
    time. Before an op's end the device may have waited for the op."""
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


def streams_held(view: View, process: Process, window: Interval) -> list[Interval]:
    """Return when a device's computing stream is known to have stood in an op: in its waits for
    asynchronous ones, and in what is not asynchronous; of sharded units, whose ops are on other
    streams, in their waits."""
    stood = [one[1:3] for one in records(view, process, "stood", window)]
    units = records(view, process, "fsdp", window)
    if not units:
        return union([*clip(stood, *window), *_sync_ops(view, process, window)])
    verb = f" {WAIT_UNSHARD}"
    stood += [one[1:3] for one in units if process.name(one.name_id).endswith(verb)]
    return union(clip(stood, *window))


def waits_unseen(view: View, process: Process, steps: Iterable[int]) -> bool:
    """Return whether `streams_held` may lack waits for collectives of these steps: in C++ (DDP's
    reducer) or by events (sharded units), where no hook sees them."""
    if times(view) != "device":
        return False
    if view.visible(process, "fsdp"):
        return True
    for step in steps:
        issued, rows = view.step_rows(process, "issue", step)
        num_async = int(np.count_nonzero(issued.col("flags")[rows] & _ASYNC))
        if num_async > len(view.step_rows(process, "stood", step)[1]):
            return True
    return False


def _sync_ops(view: View, process: Process, window: Interval) -> list[Interval]:
    """Return stretches in which the rank's device was in ops on the stream that issued them, so
    that work queued behind them waited; ops that the host completed are not on a device."""
    found = []
    table, visible = view.rows(process, "issue")
    done, num_done = view.rows(process, "done")
    whole = window[0] - done.longest_ns, window[1]
    part = slice(*table.when[:visible].searchsorted(whole).tolist())
    last = slice(*done.when[:num_done].searchsorted(whole).tolist())
    ends = {
        (gid, seq): t1 if not flags & _BY_HOST else 0
        for gid, seq, t1, flags in done.tuples(last, "group_id", "seq", "t1_ns", "flags")
    }
    for gid, seq, t0, flags in table.tuples(part, "group_id", "seq", "t0_ns", "flags"):
        if not flags & _ASYNC:
            found.append((t0, max(t0, ends.get((gid, seq), window[1]))))
    return union(clip(found, *window))


class Ahead(NamedTuple):
    """Lead of a rank's host over its device in the recent steps."""

    lead_ns: int
    """Median lead over actions, phases and ops of the newest step, in ns."""
    host_bound: float
    """Share of the recent steps in which the host had yet to launch what the device reached next:
    an upper bound of the device's time without work."""


def ahead(view: View, rank: int) -> Ahead | None:
    """Return a rank's lead in its recent steps; None if no device times are known."""
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
    """Place where a device has stopped making progress."""

    since_ns: int
    """Time of the last thing that the device is known to have reached, in ns."""
    name: str
    """Name of the oldest launch that the device has not reached: a phase, an action or an op."""
    step: int


def reached_ns(view: View, rank: int) -> int | None:
    """Return when a rank's device last reached something, in ns; None: its times are not known."""
    process = view.ranks[rank]
    return view.newest_ns(process, ("reached",)) if process.device_times.seen else None


@per_view
def standing(view: View, rank: int) -> Standing | None:
    """Return where a rank's device stands; None: it has reached all that was launched, or its times
    are not known."""
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
