"""Time without the debugger's holds, which say nothing about the program.

A rank is *stalled* while it is held at a gate, and while it waits inside an op as others are held:
it may wait for them. Durations of steps are given without that time. A pipeline's step needs more:
``pipeline.unheld`` lays its actions out again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.base.intervals import Interval, clip, intersect, subtract, total, union
from pardbg.store.process import Process
from pardbg_agent import wire

LAST: Final = 1024
"""Maximum number of holds per rank looked at for live figures."""


def held_ns(view: View, ranks: Iterable[int], t0_ns: int, t1_ns: int) -> int:
    """Return the sum over ranks of the time held at gates within t0..t1, in ns."""
    return sum(total(_held(view, rank, t0_ns, t1_ns)) for rank in ranks)


def unheld_ns(view: View, rank: int, t0_ns: int, t1_ns: int) -> int:
    """Return the time within t0..t1 in which the rank was not stalled, in ns."""
    return t1_ns - t0_ns - total(stalls(view, rank, t0_ns, t1_ns))


def stalls(view: View, rank: int, t0_ns: int, t1_ns: int) -> list[Interval]:
    """Return the intervals within t0..t1 in which the rank was stalled."""
    if not was_held(view, t0_ns, t1_ns):
        return []
    own = _stood(view, rank, t0_ns, t1_ns)
    others = [
        span for other in view.ranks if other != rank for span in _stood(view, other, t0_ns, t1_ns)
    ]
    process = view.ranks.get(rank)
    if process is None or not others:
        return union(own)
    return union([*own, *intersect(_waiting(view, process, t0_ns, t1_ns), others)])


def was_held(view: View, t0_ns: int, t1_ns: int) -> bool:
    """Return whether any rank was held within t0..t1; the others may then have waited for it."""
    spans = _recent(view)
    if not spans:
        return False
    if t0_ns < spans[0][0]:  # holds of long ago are not among the last ones
        return held_ns(view, view.ranks, t0_ns, t1_ns) > 0
    at = bisect_left(spans, t0_ns, key=lambda span: span[1])
    return at < len(spans) and spans[at][0] < t1_ns


def last_hold_end(view: View) -> int:
    """Return the time of the last release, in ns; 0 if no rank was held lately."""
    spans = _recent(view)
    return spans[-1][1] if spans else 0


def _stood(view: View, rank: int, t0_ns: int, t1_ns: int) -> list[Interval]:
    """Return when holds stopped a rank: a device first runs the actions that its host launched
    before. Whether it then computed or waited outside of actions is not known."""
    held, process = _held(view, rank, t0_ns, t1_ns), view.ranks.get(rank)
    if not held or process is None or not process.device_times.seen:
        return held
    table, visible = view.rows(process, "reached")
    found = []
    for begin, end in held:
        whole = begin, end + table.longest_ns
        part = slice(*table.when[:visible].searchsorted(whole).tolist())
        lane, t0, t1, b = (table.col(name)[part] for name in ("peer", "t0_ns", "t1_ns", "b"))
        ran = np.flatnonzero((lane == wire.Lane.COMPUTE) & (t1 - b <= begin))
        found += subtract(
            [(begin, end)], list(zip(t0[ran].tolist(), t1[ran].tolist(), strict=True))
        )
    return found


def _held(view: View, rank: int, t0_ns: int, t1_ns: int) -> list[Interval]:
    """Return the rank's holds within t0..t1, including an open one at the cursor."""
    process = view.ranks.get(rank)
    if process is None:
        return []
    table, visible = view.rows(process, "held")
    lo = int(table.when[:visible].searchsorted(t0_ns))  # ``when`` is the end
    begins, ends = (table.col(c)[lo:visible].tolist() for c in ("t0_ns", "t1_ns"))
    found = list(zip(begins, ends, strict=True))
    since = _open_holds(view).get(rank)
    if since is not None:
        found.append((since, max(t1_ns, since)))
    return clip(found, t0_ns, t1_ns)


@per_view
def _open_holds(view: View) -> dict[int, int]:
    """Return rank -> begin of its open hold at the cursor, which has no record yet."""
    reported = view.store.states.ranks(view.now_ns)[1] if view.run_end is None else {}
    found: dict[int, int] = {}
    for rank, process in view.ranks.items() if reported else ():
        state = reported.get(process.proc) or {}
        since = state.get("held_since_ns")
        if state.get("held") and isinstance(since, int) and since > 0:
            since += process.clocks.at(view.t_ns).offset_ns
            table, visible = view.rows(process, "held")
            if not visible or int(table.when[visible - 1]) <= since:
                found[rank] = since
    return found


def _waiting(view: View, process: Process, t0_ns: int, t1_ns: int) -> list[Interval]:
    """Return the intervals in which the host was inside waits and synchronous ops."""
    found: list[Interval] = []
    for name in ("wait", "issue", "issue_p2p"):
        table, visible = view.rows(process, name)
        lo = int(table.when[:visible].searchsorted(t0_ns - table.longest_ns))
        columns = (table.col(c)[lo:visible].tolist() for c in ("t0_ns", "t1_ns", "flags"))
        for begin, end, flags in zip(*columns, strict=True):
            if begin >= t1_ns:
                if name == "wait":
                    continue
                break
            if name == "wait" or not flags & int(wire.Flag.ASYNC):
                found.append((begin, end))
    return clip(found, t0_ns, t1_ns)


@per_view
def _recent(view: View) -> list[Interval]:
    """Return the last holds of all ranks, merged, in order of time."""
    if not (any(one.has_had("held") for one in view.ranks.values()) or _open_holds(view)):
        return []  # the usual case
    held = view.all("held")
    found = held.take(("t0_ns", "t1_ns"), np.maximum(held.counts - LAST, 0))
    spans = list(zip(found["t0_ns"].tolist(), found["t1_ns"].tolist(), strict=True))
    spans += [(since, max(view.t_ns, since + 1)) for since in _open_holds(view).values()]
    return union(spans)
