"""Find the system call that takes a rank's time over many steps, by samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.speed.windows import Window
from pardbg.analysis.hangs.blocking_calls import Blocking, counted
from pardbg_agent.wire import BEAT_NS

_SAMPLED_NS: Final = 15_000_000_000
"""Minimum time over which samples of system calls are counted, in ns, if the job ran so long."""
_LEAST_SAMPLES: Final = 4
CAUSE_SHARE: Final = 0.5
"""Minimum share of the lateness that a phase or a call accounts for to be the cause."""
_COMPARED: Final = 8
"""Maximum number of other ranks whose samples are compared."""


def blocked(
    view: View, looked_at: Window, culprits: Sequence[int]
) -> tuple[Blocking | None, str | None, float]:
    """Return (call, place, ns per step) of the system call in which the first culprit was seen
    most, beyond what the other ranks were; one sample stands for a heartbeat."""
    since = _since(view, looked_at, culprits[0])
    usual: Counter[tuple[Blocking, str]] = Counter()
    for other in _others(view, culprits):
        usual |= counted(view, other, since)
    own = (counted(view, culprits[0], since) - usual).most_common(1)
    if not own or own[0][1] < _LEAST_SAMPLES:
        return None, None, 0.0
    (of, where), number = own[0]
    return of, where, number * BEAT_NS * looked_at.step_ns / (view.t_ns - since)


def others_wait_for_workers(view: View, looked_at: Window, culprits: Sequence[int]) -> bool:
    """Return whether at least half of the other ranks were seen waiting for loaders' workers."""
    since = _since(view, looked_at, culprits[0])
    seen = [
        any(of.call == "worker" for of, _ in counted(view, rank, since))
        for rank in _others(view, culprits)
    ]
    return 2 * sum(seen) >= len(seen) > 0


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
