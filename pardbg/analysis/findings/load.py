"""Finds hosts that have too few cores for what runs there: times are the machine's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median
from typing import Final

from pardbg.analysis.base.asof import View, per_store
from pardbg.analysis.findings.finding import Candidate
from pardbg.analysis.findings.kinds.speed_kinds import HostOverloaded
from pardbg.analysis.findings.speed.windows import Window, scheduled, window
from pardbg.analysis.hangs.standstill import OVERLOADED, host_load
from pardbg.events import fields

READY_SHARE: Final = 0.05
"""Share of a step that ranks of a host with too few cores stand ready without one."""
LOOKS: Final = 4
"""Moments of the steps looked at at which the load is read."""


def overloaded_hosts(view: View) -> Iterator[Candidate]:
    """Find one per host: by the load that its hub measured, or the time of its ranks in the run
    queue."""
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank, process in view.ranks.items():
        by_host[process.host].append(rank)
    looked_at = window(view)
    taken = scheduled(view, looked_at) if looked_at is not None else {}
    for host, ranks in by_host.items():
        load = _load(view, ranks, looked_at)
        stood = [taken[rank][1] for rank in ranks if rank in taken]
        share = median(stood) / looked_at.step_ns if stood and looked_at is not None else 0.0
        if load >= OVERLOADED or share >= READY_SHARE:
            cores = max(fields.integer(view.ranks[r].facts, "cpus", 0) for r in ranks)
            facts = HostOverloaded(host, len(ranks), cores, load, round(share, 3))
            yield Candidate(kind="host-overloaded", ranks=tuple(ranks), t_ns=view.t_ns, facts=facts)


def _load(view: View, ranks: list[int], looked_at: Window | None) -> float:
    """Threads per core, at most, now and while the steps that are judged ran: what a load made slow
    is its doing after it has gone, too."""
    now = host_load(view, ranks)
    if looked_at is None:
        return now
    highest = _highest(view, looked_at)
    return max(now, *(highest.get(view.ranks[rank].proc, 0) / 100 for rank in ranks))


@per_store(lambda _, at: (at.epoch, at.newest, len(at.steps)))
def _highest(view: View, /, at: Window) -> dict[str, int]:
    """Process -> its host's highest load in these steps, in hundredths of a thread per core."""
    since, until = at.begin_ns, at.end_ns
    found: dict[str, int] = {}
    for number in range(LOOKS + 1):
        _, said = view.store.states.ranks(since + (until - since) * number // LOOKS)
        for proc, row in said.items():
            found[proc] = max(found.get(proc, 0), fields.integer(row, "load", 0))
    return found
