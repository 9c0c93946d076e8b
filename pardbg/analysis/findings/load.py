"""Finds hosts with too few cores for their processes, where times tell little about the job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median
from typing import Final

from pardbg.analysis.base.asof import View, per_store
from pardbg.analysis.base.times import times
from pardbg.analysis.findings.finding import Candidate
from pardbg.analysis.findings.kinds.speed_kinds import HostOverloaded
from pardbg.analysis.findings.speed.windows import Window, scheduled, window
from pardbg.analysis.hangs.standstill import OVERLOADED, host_load
from pardbg.events import fields

READY_SHARE: Final = 0.05
"""Share of a step for which ranks of an overloaded host wait, runnable, for a core."""
LOOKS: Final = 4
"""Number of moments in the window at which the load is read."""


def overloaded_hosts(view: View) -> Iterator[Candidate]:
    """Find one candidate per overloaded host, by the hub's measured load or by the time its ranks
    spend in the run queue."""
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
            timed = times(view) == "device"
            facts = HostOverloaded(host, len(ranks), cores, load, round(share, 3), timed)
            yield Candidate(kind="host-overloaded", ranks=tuple(ranks), t_ns=view.t_ns, facts=facts)


def _load(view: View, ranks: list[int], looked_at: Window | None) -> float:
    """Return the highest load in threads per core, now or during the window: steps that a load
    slowed down stay slow after it has gone."""
    now = host_load(view, ranks)
    if looked_at is None:
        return now
    highest = _highest(view, looked_at)
    return max(now, *(highest.get(view.ranks[rank].proc, 0) / 100 for rank in ranks))


@per_store(lambda _, at: (at.epoch, at.newest, len(at.steps)))
def _highest(view: View, /, at: Window) -> dict[str, int]:
    """Return process -> its host's highest load in the window, in 1/100 thread per core."""
    since, until = at.begin_ns, at.end_ns
    found: dict[str, int] = {}
    for number in range(LOOKS + 1):
        _, said = view.store.states.ranks(since + (until - since) * number // LOOKS)
        for proc, row in said.items():
            found[proc] = max(found.get(proc, 0), fields.integer(row, "load", 0))
    return found
