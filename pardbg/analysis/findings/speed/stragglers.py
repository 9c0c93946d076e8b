"""The rank, or the host, that comes last again and again, and what makes it late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean, median, variance
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.intervals import Interval
from pardbg.analysis.base.spans import read_ahead
from pardbg.analysis.comm.collective_columns import CollectiveColumns
from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.findings.shared import Evidence, Finding, first
from pardbg.analysis.findings.speed.windows import (
    BUSY_HOST,
    COMPUTE,
    LAST,
    OFTEN,
    PHASE_TABLES,
    Window,
    often,
    overloaded,
    per_window,
    phases_in,
    rows_in,
    scheduled,
)
from pardbg.analysis.hangs.standstill import CROWDED, host_load
from pardbg.store.table import Array
from pardbg.words import agreed, duration, ranks_text, waits_text

Group = tuple[int, str]
"""(epoch, key)"""
Ranks = tuple[int, ...]
MARGIN_NS: Final = 5_000_000
OF_STEP: Final = 0.1
"""Minimum lateness after half of the ranks, as a share of a step: less is noise."""
LOUD_NS: Final = 10_000_000
"""A step that would be shorter by less, or by less than OF_STEP, is something to know only. So is,
where threads take turns on cores, as many times that as there are threads to a core, of time that
no phase makes up for."""
BEYOND: Final = 2.0
"""Times the usual spread of the others' arrivals: less is what they do to each other, too."""
LEAST_RANKS: Final = 3
MEAN_BEYOND, SURE = 1.5, 2.0
"""Means over a window come apart by less than single steps do; standard errors."""
CAUSE_SHARE: Final = 0.5
"""Minimum share of the lateness of a phase worth looking at."""
_FIRM: Final = ("data", "compute", "communication", "core", "host")
"""Causes that are seen; of an unknown one, chance may be it."""
_ADVICE: Final = {
    "data": "Look at the loader: more workers, prefetching, a closer or faster disk.",
    "compute": "Compare the device with the others': clocks, other programs on it, more tokens or "
    "a larger share of the model than the others have.",
    "communication": "The wait is in another group's ops first: look for what holds that group up.",
    "core": "Another process runs on these cores: look at CPU affinity (taskset, cgroup) and at "
    "what else runs there.",
    "busy host": "Run fewer processes on that host, or fewer threads in each (OMP_NUM_THREADS): no "
    "rank is slower than the others by itself.",
    "host": "The time lies outside the hooked phases: logging, checkpoints, evaluation, Python. "
    "Put a pardbg_agent.span around what you suspect.",
    "unknown": "See in the timeline what comes before those ops there and not in the others.",
}


@dataclass(frozen=True, slots=True)
class _Late:
    """Late arrivals at one step's collectives."""

    step: int
    row: CollectiveRow
    by: Mapping[int, int]
    """rank -> ns after half of the ranks had come"""


@per_window
def stragglers(view: View, looked_at: Window) -> Iterable[Finding]:
    """Find one per group that waits for the same ranks in most steps; who is late because it waited
    for one of those waits, too."""
    rows = rows_in(view, looked_at)
    clear = max(MARGIN_NS, OF_STEP * looked_at.step_ns)
    told: dict[Ranks, tuple[str, Finding]] = {}
    also: dict[Ranks, set[int]] = defaultdict(set)
    for latest in _latest(view, looked_at, rows, clear):
        steps = rows.of["step"][latest].tolist()
        lates = [_late(*of) for of in zip(steps, rows.rows(latest.tolist()), strict=True)]
        again = _again_and_again(lates, looked_at.steps, clear)
        culprits = again or _by_mean(view, looked_at, lates, clear)
        of = tuple(culprits)
        if of in told:
            also[of].update(a.rank for a in lates[-1].row.arrivals)
        elif of:
            told[of] = _finding(view, looked_at, lates, culprits, bool(again))
    yield from _without_victims(told, also)


def _without_victims(
    told: Mapping[Ranks, tuple[str, Finding]], also: Mapping[Ranks, set[int]]
) -> Iterator[Finding]:
    """Leave out who is late from waiting in other ops for somebody that is told of, and not for
    much longer. ``also``: ranks of other groups in which the same come last."""
    late = {of: found for of, (cause, found) in told.items() if cause == "communication"}
    victims: set[Ranks] = set()
    for of, (_, found) in told.items():
        if of in late:
            continue
        waiting, before = set(found.ranks) | also.get(of, set()), -1
        most = BEYOND * (found.cost_ns_per_step or 0)
        while before != len(waiting):
            before = len(waiting)
            mine = {others for others, one in late.items() if waiting.issuperset(others)
                    and (one.cost_ns_per_step or 0) <= most}  # fmt: skip
            waiting.update(*(late[others].ranks for others in mine))
            victims |= mine
        if in_turn := tuple(sorted(waiting.difference(found.ranks, of))):
            text = f"{found.text} {ranks_text(in_turn).capitalize()} {waits_text(in_turn)} in turn."
            found = replace(found, text=text, ranks=(*found.ranks, *in_turn))
        yield found
    yield from (found for of, found in late.items() if of not in victims)


def _latest(
    view: View, looked_at: Window, rows: CollectiveColumns, clear: float
) -> Iterable[Array]:
    """Return each group's collectives where lateness was largest in a step: all that follow are
    late, too. The group with most steps first, and only those where a rank may be called late."""
    if not len(rows):
        return []
    half, step, group = rows.half_ns(), rows.of["step"], rows.of["group"]
    by = np.maximum.reduceat(rows.parts["issued_ns"], rows.starts) - half
    order = np.lexsort((-by, step, group))
    new = np.ones(len(order), np.bool_)
    new[1:] = (np.diff(step[order]) != 0) | (np.diff(group[order]) != 0)
    best = order[new]
    if not overloaded(view, looked_at):
        best = best[np.isin(group[best], _with_late(looked_at, rows, best, half, clear))]
    each = np.split(best, np.flatnonzero(np.diff(group[best])) + 1) if len(best) else []
    firsts = dict(zip(*(of.tolist() for of in np.unique(group, return_index=True)), strict=True))
    return sorted(each, key=lambda of: (-len(of), firsts[int(group[of[0]])]))


def _with_late(
    looked_at: Window, rows: CollectiveColumns, best: Array, half: Array, clear: float
) -> Array:
    """Return groups with a rank that came late to these collectives in most steps."""
    is_best = np.zeros(len(rows), np.bool_)
    is_best[best] = True
    late = is_best[rows.row_of] & (rows.parts["issued_ns"] - half[rows.row_of] >= clear)
    who = rows.of["group"][rows.row_of[late]] << 32 | rows.parts["rank"][late]
    found, times = np.unique(who, return_counts=True)
    again: Array = found[times >= OFTEN * len(looked_at.steps)] >> 32
    return again


def _late(step: int, row: CollectiveRow) -> _Late:
    arrived = row.issued
    half = sorted(arrived.values())[(len(arrived) - 1) // 2]
    return _Late(step, row, {rank: t - half for rank, t in arrived.items()})


def _again_and_again(lates: Sequence[_Late], steps: Sequence[int], clear: float) -> list[int]:
    ranks = {rank for late in lates for rank in late.by}
    again = sorted(
        rank for rank in ranks if often(sum(late.by.get(rank, 0) >= clear for late in lates), steps)
    )
    beyond = max(clear, BEYOND * _spread(lates, again))
    usual = {r: median(late.by[r] for late in lates if r in late.by) for r in again}
    return [rank for rank in again if usual[rank] >= beyond]


def _by_mean(view: View, looked_at: Window, lates: Sequence[_Late], clear: float) -> list[int]:
    """The rank that is late on an overloaded host, where all come late in one step or another: by
    its mean lateness less what it stood without a core, beyond what those of the others differ by
    and beyond chance."""
    stood = {rank: ns for rank, (_, ns) in scheduled(view, looked_at).items()}
    by = {rank: [late.by[rank] for late in lates if rank in late.by] for rank in stood}
    few = len(by) < LEAST_RANKS or any(len(each) < LAST for each in by.values())
    if few or not overloaded(view, looked_at):
        return []
    own = {rank: fmean(by[rank]) - stood[rank] for rank in by}
    *others, second, last = sorted(own, key=lambda rank: own[rank])
    chance = sqrt(
        (variance(by[last]) + max(variance(by[rank]) for rank in by if rank != last)) / LAST
    )
    apart = own[second] - own[others[0]]
    found = fmean(by[last]) > 0 and own[last] - own[second] >= max(
        clear, MEAN_BEYOND * apart, SURE * chance
    )
    return [last] if found else []


def _spread(lates: Sequence[_Late], without: Sequence[int]) -> float:
    """Return how far apart the other ranks come in a usual step, ns."""
    apart = []
    for late in lates:
        others = [by for rank, by in late.by.items() if rank not in without]
        if others:
            apart.append(max(others) - min(others))
    return median(apart) if apart else 0.0


def _finding(
    view: View, looked_at: Window, lates: Sequence[_Late], culprits: Sequence[int], again: bool
) -> tuple[str, Finding]:
    """Return the cause and what is said. ``again``: late in most steps; else in the mean."""
    late_in = [late for late in lates if any(late.by.get(r, 0) > 0 for r in culprits)]
    by = median(max(late.by.get(r, 0) for r in culprits) for late in late_in)
    own_cost = (_cost(late, culprits) for late in late_in)
    cost = median(own_cost) if again else _mean_cost(lates, culprits)
    more, stood = _stood(view, looked_at, culprits, by)
    cause, words = _no_core(looked_at, culprits, by, more, stood) or _cause(
        view, looked_at, late_in, culprits
    )
    own = min(cost, by - more) if cause != "core" else cost
    load = host_load(view, culprits) if cause == "host" else 0.0
    firm = cause in _FIRM and (again or load < CROWDED)
    loud = own >= max(LOUD_NS * max(1.0, load), OF_STEP * looked_at.step_ns) and firm
    newest = late_in[-1].row
    others = tuple(a.rank for a in newest.arrivals if a.rank not in culprits)
    hosts = {view.ranks[r].host for r in culprits if r in view.ranks}
    where = _host_words(view, hosts, culprits)
    who = f"{ranks_text(culprits)}{where}"
    return cause, Finding(
        kind="straggler",
        severity="warning" if loud else "info",
        ranks=others,
        culprits=() if cause == "busy host" else tuple(culprits),
        group=newest.group,
        seq=newest.seq,
        t_ns=first(newest),
        first_ns=first(late_in[0].row),
        text=f"{who} came last to {newest.label}'s collectives in {len(late_in)} of the last "
        f"{len(looked_at.steps)} steps, by {duration(by)}; {agreed(words, culprits)}. "
        f"{ranks_text(others).capitalize()} {waits_text(others)}.",
        advice=_ADVICE[cause],
        cost_ns_per_step=round(cost),
        evidence=Evidence(first(newest), culprits[0], "timeline", lane="phase"),
    )


def _cost(late: _Late, culprits: Sequence[int]) -> int:
    """By how much the step would have been shorter."""
    others = [by for rank, by in late.by.items() if rank not in culprits]
    return max(0, max(late.by.values()) - max(others, default=0))


def _mean_cost(lates: Sequence[_Late], culprits: Sequence[int]) -> float:
    """The same of the mean step, where in most steps somebody else comes last."""
    by = {rank: fmean(late.by.get(rank, 0) for late in lates) for rank in lates[0].by}
    others = [ns for rank, ns in by.items() if rank not in culprits]
    return max(0.0, max(by.values()) - max(others, default=0.0))


def _host_words(view: View, hosts: set[str], culprits: Sequence[int]) -> str:
    """`` (all of host n1)`` where the culprits are one whole host among several."""
    everywhere = {process.host for process in view.ranks.values()}
    if len(hosts) != 1 or len(everywhere) < 2:
        return ""
    (host,) = hosts
    there = [rank for rank, process in view.ranks.items() if process.host == host]
    return f" (all of host {host})" if sorted(there) == sorted(culprits) and there[1:] else ""


def _stood(
    view: View, looked_at: Window, culprits: Sequence[int], by: float
) -> tuple[float, float]:
    """(how much longer than the others they stand ready without a core, how long those do), ns a
    step: at most what they are late ``by``, less what they run for longer than the others."""
    taken = scheduled(view, looked_at)
    usual = [taken[rank] for rank in taken if rank not in culprits]
    if not usual or not taken.keys() >= set(culprits):
        return 0.0, 0.0
    ran, stood = (median(each) for each in zip(*usual, strict=True))
    runs = max(taken[rank][0] for rank in culprits)
    longer = runs - ran if runs > (1 + OF_STEP) * ran else 0.0
    beyond = min(taken[rank][1] - stood for rank in culprits)
    return max(0.0, min(beyond, by - longer) if longer else beyond), stood


def _no_core(
    looked_at: Window, culprits: Sequence[int], by: float, more: float, stood: float
) -> tuple[str, str] | None:
    """(cause, in words) if it is the host: they are late because they stand without a core."""
    if not more or more < CAUSE_SHARE * by:
        return None
    gets = agreed("gets", culprits)
    text = f"it is ready to run and {gets} no core for {duration(more)} longer"
    if stood < BUSY_HOST * looked_at.step_ns:
        return "core", text
    return "busy host", f"{text} (the others for {duration(stood)}: the host is overloaded)"


def _cause(
    view: View, looked_at: Window, lates: Sequence[_Late], culprits: Sequence[int]
) -> tuple[str, str]:
    """(cause, in words): the phase in which the culprits spend more time than the others do,
    from the begin of the step up to where it is late."""
    more: dict[str, list[float]] = defaultdict(list)
    for late in lates[-8:]:
        before = _before(view, looked_at, late)
        read_ahead(view, PHASE_TABLES, before)
        spent = {
            a.rank: phases_in(view, a.rank, before[a.rank]) if a.rank in before else {}
            for a in late.row.arrivals
        }
        others = [spent[rank] for rank in spent if rank not in culprits]
        for name in {name for phases in spent.values() for name in phases}:
            usual = median(phases.get(name, 0) for phases in others) if others else 0
            own = max(spent[rank].get(name, 0) for rank in culprits if rank in spent)
            more[name].append(own - usual)
    excess = {name: median(values) for name, values in more.items()}
    lateness = median(max(late.by.get(r, 0) for r in culprits) for late in lates[-8:])
    compute = sum(max(0.0, excess.get(name, 0)) for name in COMPUTE)
    if excess.get("data", 0) >= CAUSE_SHARE * lateness:
        return "data", f"its data loading takes {duration(excess['data'])} longer"
    if compute >= CAUSE_SHARE * lateness:
        parts = ", ".join(n for n in COMPUTE if excess.get(n, 0) >= 0.2 * compute)
        return "compute", f"its compute takes {duration(compute)} longer ({parts})"
    if excess.get("communication", 0) >= CAUSE_SHARE * lateness:
        waits = duration(excess["communication"])
        return "communication", f"it waits {waits} longer in other ops before"
    if excess.get("host", 0) >= CAUSE_SHARE * lateness:
        return "host", f"it spends {duration(excess['host'])} more outside of forward and backward"
    return "unknown", "no one phase makes up for it"


def _before(view: View, looked_at: Window, late: _Late) -> dict[int, Interval]:
    """rank -> from the begin of its step to its arrival"""
    spans, came = looked_at.spans[late.step], late.row.issued
    return {
        rank: (min(spans[rank][0], arrived), arrived)
        for rank, arrived in came.items() if rank in spans and rank in view.ranks
    }  # fmt: skip
