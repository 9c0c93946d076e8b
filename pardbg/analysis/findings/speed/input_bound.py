"""Finds steps in which ranks wait for their data, whichever ranks they are."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Final

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.intervals import Interval, clip, total, union
from pardbg.analysis.base.leads import host_bound
from pardbg.analysis.base.spans import records
from pardbg.analysis.base.times import times
from pardbg.analysis.findings.finding import Candidate, Evidence
from pardbg.analysis.findings.kinds.speed_kinds import InputBound
from pardbg.analysis.findings.speed.system_calls import busy_loaders
from pardbg.analysis.findings.speed.windows import Window, often, per_window

WAITS: Final = 0.2
"""Share of a step for which a rank waits for its data."""
WAITS_NS: Final = 10_000_000
MAX_RANKS: Final = 64
"""Maximum number of ranks whose waits are read, evenly chosen."""


@per_window
def input_bound(view: View, looked_at: Window) -> Iterable[Candidate]:
    """Find steps in which the rank that waits longest for its data, whichever it is, does so for a
    fifth of the step; needs counted steps."""
    ranks = sorted(looked_at.spans[looked_at.steps[-1]].keys() & view.ranks.keys())
    if looked_at.rows is not None or not ranks:
        return
    chosen = ranks[:: -(-len(ranks) // MAX_RANKS)]
    spans = (looked_at.spans[step] for step in looked_at.steps)
    waits = [max(_waits(view, rank, of[rank]) for rank in chosen) for of in spans]
    mean = sum(waits) / len(waits)
    loud = sum(ns >= WAITS * looked_at.step_ns for ns in waits)
    if mean < max(WAITS_NS, WAITS * looked_at.mean_ns) or not often(2 * loud, looked_at.steps):
        return
    busy = [share for rank, share in busy_loaders(view, looked_at).items() if rank in chosen]
    facts = InputBound(mean, looked_at.mean_ns, median(busy) if busy else None)
    yield Candidate(
        kind="input-bound", ranks=tuple(ranks), t_ns=looked_at.end_ns,
        first_ns=looked_at.begin_ns, cost_ns_per_step=round(mean), facts=facts,
        evidence=Evidence(looked_at.end_ns, chosen[0], "timeline", lane="phase"),
    )  # fmt: skip


def _waits(view: View, rank: int, step: Interval) -> int:
    """Return the time of a step, in ns, in which a rank's program waits for its next batch; of a
    rank that computes on a device, while the device has nothing queued."""
    process = view.ranks[rank]
    data = union(
        (one.t0_ns, one.t1_ns) for one in records(view, process, "phase", step)
        if process.name(one.name_id) == "data"
    )  # fmt: skip
    inside = clip(data, *step)
    if times(view) == "device":
        return sum(total(clip(host_bound(view, rank, step), *each)) for each in inside)
    return total(inside)
