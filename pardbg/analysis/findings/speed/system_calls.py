"""Finds what takes the time of a rank over many steps, by samples: a system call, or a loader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View, per_look
from pardbg.analysis.findings.speed.windows import Window
from pardbg.analysis.hangs.blocking_calls import Blocking, counted
from pardbg_agent.wire import BEAT_NS, BLOCKED, LOADERS

_SAMPLED_NS: Final = 15_000_000_000
"""Minimum time over which samples of system calls are counted, in ns, if the job ran so long."""
_LEAST_SAMPLES: Final = 4
CAUSE_SHARE: Final = 0.5
"""Minimum share of the lateness that a phase or a call accounts for to be the cause."""
BUSY, AHEAD = 0.9, 0.75
"""Least share of the time for which workers of a loader work that holds its rank up, and most for
which those of a loader do that is ahead of its rank."""
_COMPARED: Final = 8
"""Maximum number of other ranks whose samples are compared."""


def blocked(
    view: View, looked_at: Window, culprits: Sequence[int], head: str = BLOCKED
) -> tuple[Blocking | None, str | None, float]:
    """Return (call, place, ns per step) of the system call in which the first culprit was seen
    most, beyond what the other ranks were; one sample stands for a heartbeat. ``head``: as for
    ``samples``."""
    since, until = _since(view, looked_at, culprits[0]), looked_at.end_ns
    usual: Counter[tuple[Blocking, str]] = Counter()
    for other in _others(view, culprits):
        usual |= counted(view, other, since, until, head)
    own = (counted(view, culprits[0], since, until, head) - usual).most_common(1)
    if not own or own[0][1] < _LEAST_SAMPLES:
        return None, None, 0.0
    (of, where), number = own[0]
    return of, where, number * BEAT_NS * looked_at.step_ns / (until - since)


def _others(view: View, culprits: Sequence[int]) -> list[int]:
    return [rank for rank in view.ranks if rank not in culprits][:_COMPARED]


def _since(view: View, looked_at: Window, rank: int) -> int:
    """Return the time from which on the rank's samples count, in ns."""
    since = min(looked_at.begin_ns, looked_at.end_ns - _SAMPLED_NS)
    for name in ("step", "phase"):  # before is no part of one
        table, visible = view.rows(view.ranks[rank], name)
        if visible:
            return since if table.base else max(since, int(table.col("t0_ns")[0]))
    return since


@per_look
def busy_loaders(view: View, looked_at: Window) -> dict[int, float]:
    """Return rank -> share of the looks in which its loader's workers were at work. Ranks without
    workers, or whose workers cannot be seen, are left out."""
    found: dict[int, float] = {}
    for rank, process in view.ranks.items():
        table, visible = view.rows(process, "probe")
        if not (wanted := process.ids(LOADERS)):
            continue
        within = _since(view, looked_at, rank), looked_at.end_ns + 1
        part = slice(*table.when[:visible].searchsorted(within).tolist())
        rows = part.start + np.flatnonzero(np.isin(table.col("name_id")[part], wanted))
        busy, seen = (int(table.col(name)[rows].view("<i8").sum()) for name in ("a", "b"))
        if seen:
            found[rank] = busy / seen
    return found


def slow_loaders(view: View, looked_at: Window) -> list[int]:
    """Return ranks whose loaders' workers are always at work, while all the others' are idle for a
    good part of the time: fewer than half of the ranks."""
    busy = busy_loaders(view, looked_at)
    slow = sorted(rank for rank, share in busy.items() if share >= BUSY)
    others = [share for rank, share in busy.items() if rank not in slow]
    return slow if len(slow) < len(others) and max(others) <= AHEAD else []
