"""Finds the ranks, or the host, that come last again and again, and the cause."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean, median, variance
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.intervals import Interval
from pardbg.analysis.base.spans import read_ahead
from pardbg.analysis.base.times import device, times
from pardbg.analysis.comm.collective_columns import CollectiveColumns
from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.findings.finding import Candidate, Evidence, Label, first
from pardbg.analysis.findings.kinds.speed_kinds import Lateness, Straggler
from pardbg.analysis.findings.speed.system_calls import (
    CAUSE_SHARE,
    blocked,
    busy_loaders,
    slow_loaders,
)
from pardbg.analysis.findings.speed.windows import (
    COMPUTE,
    LAST,
    OFTEN,
    PHASE_TABLES,
    Window,
    call_in,
    often,
    overlaps_in,
    overloaded,
    per_window,
    phases_in,
    rows_in,
    scheduled,
)
from pardbg.store.table import Array
from pardbg_agent import wire

Group = tuple[int, str]
"""(epoch, key)"""
Ranks = tuple[int, ...]
Excess = Mapping[int, Mapping[str, float]]
"""rank -> phase -> additional time in ns per step"""
_OF_LOADERS: Final = ("poll", "lock", "pipe", "worker")
"""Calls in which a rank waits for its data loader's workers, which then are the slow part."""
_OTHER: Final = int(wire.Flag.OTHER_THREAD)
MARGIN_NS: Final = 5_000_000
OF_STEP: Final = 0.1
"""Minimum lateness after half of the ranks, as a share of a step; below it is noise."""
BEYOND: Final = 2.0
"""Factor above the usual spread of the others' arrivals; below it is mutual disturbance."""
LEAST_RANKS: Final = 3
SELDOM: Final = 0.15
"""Least share of the steps in which a rank whose loader is too slow is late."""
MEAN_BEYOND, SURE = 1.5, 2.0
"""Least mean lateness, in standard errors. ``MEAN_BEYOND``: as ``BEYOND``, for window means."""
MAX_MEMBERS, MAX_GROUPS = 64, 4
"""Maximum size and number of groups whose waits are read."""
COMPARED: Final = 16
"""Number of other ranks, evenly chosen by arrival, that are compared; at most twice that."""


@dataclass(frozen=True, slots=True)
class _Late:
    """Arrivals at one collective of a step, relative to half of the ranks."""

    step: int
    row: CollectiveRow
    by: Mapping[int, int]
    """rank -> ns after half of the ranks had arrived (of a whole step: by which it waits less)"""


@per_window
def stragglers(view: View, looked_at: Window) -> Iterable[Candidate]:
    """Find one straggler (one rank or several) per group that waits for it in most steps; ranks
    late only because they wait for a straggler are victims."""
    rows = rows_in(view, looked_at)
    clear = max(MARGIN_NS, OF_STEP * looked_at.step_ns)
    found: dict[Ranks, tuple[Candidate, Straggler]] = {}
    also: dict[Ranks, set[int]] = defaultdict(set)
    for lates, again in _lates(view, looked_at, rows, clear):
        culprits = again or _by_mean(view, looked_at, lates, clear)
        if not culprits:
            culprits, lates = _by_loaders(view, looked_at, lates, clear)
        excess = _excess(view, looked_at, lates, culprits) if culprits else {}
        culprits = _workers(excess, culprits)
        of = tuple(culprits)
        if of in found and found[of][1].cause != "thread":
            also[of].update(a.rank for a in lates[-1].row.arrivals)
        elif of:
            found[of] = _candidate(view, looked_at, lates, culprits, excess, bool(again))
    yield from _without_victims(found, also)


def _without_victims(
    found: Mapping[Ranks, tuple[Candidate, Straggler]], also: Mapping[Ranks, set[int]]
) -> Iterator[Candidate]:
    """Leave out ranks that are late only because they wait for a straggler in other ops, and cost
    not much more. ``also``: ranks of other groups in which the same culprits come last."""
    late = {of: one for of, (one, facts) in found.items() if facts.cause == "communication"}
    victims: set[Ranks] = set()
    for of, (one, facts) in found.items():
        if of in late:
            continue
        waiting, before = set(one.ranks) | also.get(of, set()), -1
        most = BEYOND * (one.cost_ns_per_step or 0)
        while before != len(waiting):
            before = len(waiting)
            mine = {others for others, other in late.items() if waiting.issuperset(others)
                    and (other.cost_ns_per_step or 0) <= most}  # fmt: skip
            waiting.update(*(late[others].ranks for others in mine))
            victims |= mine
        in_turn = tuple(sorted(waiting.difference(one.ranks, of)))
        yield replace(one, ranks=(*one.ranks, *in_turn), facts=replace(facts, in_turn=in_turn))
    yield from (one for of, one in late.items() if of not in victims)


def _lates(
    view: View, looked_at: Window, rows: CollectiveColumns, clear: float
) -> Iterator[tuple[list[_Late], list[int]]]:
    """Yield each group's most delayed collective per step, with the ranks late to most; where there
    are none, each step as a whole of groups to whose many ops a rank comes a little late."""
    late = False
    for latest in _latest(view, looked_at, rows, clear):
        steps = rows.of["step"][latest].tolist()
        lates = [_late(*of) for of in zip(steps, rows.rows(latest.tolist()), strict=True)]
        again = _again_and_again(lates, looked_at.steps, clear)
        late |= bool(again)
        yield lates, again
    by_chance = times(view) != "device" and overloaded(view, looked_at)
    if not late and looked_at.unit != "op" and not by_chance:
        for group in _often_last(view, looked_at, rows, clear):
            lates = _in_parts(view, looked_at, rows, group)
            yield lates, _again_and_again(lates, looked_at.steps, clear)


def _often_last(view: View, looked_at: Window, rows: CollectiveColumns, clear: float) -> list[int]:
    """Return the groups whose ranks, in most steps, wait for one of them that long in all, the
    longest first; an op that nobody waits for at once counts here, too."""
    of, ranks = rows.of, int(rows.of["last_rank"].max(initial=0)) + 1
    small = (of["count"] > 1) & (of["count"] <= MAX_MEMBERS)
    ours = np.flatnonzero(small & ~_beside_devices(view, rows))
    keys = (of["group"][ours] * ranks + of["last_rank"][ours]) << 32 | of["step"][ours]
    by, inverse = np.unique(keys, return_inverse=True)
    waited = np.bincount(inverse, of["wait_ns"][ours] / (of["count"][ours] - 1))
    who, times = np.unique(by[waited >= clear] >> 32, return_counts=True)
    groups: dict[int, float] = defaultdict(float)
    for one in who[times >= OFTEN * len(looked_at.steps)].tolist():
        groups[one // ranks] += float(waited[by >> 32 == one].sum())
    return sorted(groups, key=lambda group: -groups[group])[:MAX_GROUPS]


def _in_parts(view: View, looked_at: Window, rows: CollectiveColumns, group: int) -> list[_Late]:
    """Return each step of a group: a rank is as late in it as it waits less than half of them."""
    own = np.flatnonzero(rows.of["group"] == group)
    last = dict(zip(rows.of["step"][own].tolist(), own.tolist(), strict=True))
    in_order = rows.rows(list(last.values()))
    waited = {
        (rank, part.step): part.waiting_ns
        for rank in {rank for row in in_order for rank in row.issued} & view.ranks.keys()
        for part in overlaps_in(view, looked_at, rank)
    }
    found = []
    for step, row in zip(last, in_order, strict=True):
        waits = {rank: waited[rank, step] for rank in row.issued if (rank, step) in waited}
        if len(waits) == len(row.issued):
            half = sorted(waits.values(), reverse=True)[(len(waits) - 1) // 2]
            found.append(_Late(step, row, {rank: half - ns for rank, ns in waits.items()}))
    return found


def _latest(
    view: View, looked_at: Window, rows: CollectiveColumns, clear: float
) -> Iterable[Array]:
    """Return each group's most delayed collective per step (the ones after it are late, too), the
    group with most steps first; only groups in which a rank may be called late. Where ops run on
    devices, others (a barrier of hosts) say nothing: hosts run ahead."""
    if not len(rows):
        return []
    half, step, group = rows.half_ns(), rows.of["step"], rows.of["group"]
    by = np.maximum.reduceat(rows.parts["issued_ns"], rows.starts) - half
    order = np.lexsort((-by, step, group))
    order = order[~_beside_devices(view, rows)[order]]
    new = np.ones(len(order), np.bool_)
    new[1:] = (np.diff(step[order]) != 0) | (np.diff(group[order]) != 0)
    best = order[new]
    if not overloaded(view, looked_at) and not slow_loaders(view, looked_at):
        best = best[np.isin(group[best], _with_late(looked_at, rows, best, half, clear))]
    each = np.split(best, np.flatnonzero(np.diff(group[best])) + 1) if len(best) else []
    firsts = dict(zip(*(of.tolist() for of in np.unique(group, return_index=True)), strict=True))
    return sorted(each, key=lambda of: (-len(of), firsts[int(group[of[0]])]))


def _beside_devices(view: View, rows: CollectiveColumns) -> Array:
    """Return which collectives are the hosts', where others run on devices."""
    by_host: Array = rows.of["by_host"] != 0
    return by_host & (times(view) == "device" and not by_host.all())


def _with_late(
    looked_at: Window, rows: CollectiveColumns, best: Array, half: Array, clear: float
) -> Array:
    """Return groups in which a rank came late to these collectives in most steps."""
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
    """Return the rank that is late by its mean lateness, on an overloaded host where all ranks are
    late at times: less its waits for a core, beyond the other ranks' differences and beyond
    chance."""
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


def _by_loaders(
    view: View, looked_at: Window, lates: list[_Late], clear: float
) -> tuple[list[int], list[_Late]]:
    """Return ranks whose loaders are known to be too slow, and the steps in which they are late:
    workers that finish together make every few steps slow."""
    slow = slow_loaders(view, looked_at)
    late = [one for one in lates if max((one.by.get(r, 0) for r in slow), default=0) >= clear]
    return (slow, late) if SELDOM * len(looked_at.steps) <= len(late) else ([], lates)


def _spread(lates: Sequence[_Late], without: Sequence[int]) -> float:
    """Return the spread of the other ranks' arrivals in a usual step, in ns."""
    apart = []
    for late in lates:
        others = [by for rank, by in late.by.items() if rank not in without]
        if others:
            apart.append(max(others) - min(others))
    return median(apart) if apart else 0.0


def _candidate(
    view: View,
    looked_at: Window,
    lates: Sequence[_Late],
    culprits: Sequence[int],
    excess: Excess,
    again: bool,
) -> tuple[Candidate, Straggler]:
    """Return the candidate and its facts. ``again``: late in most steps; else only in the mean."""
    late_in = [late for late in lates if any(late.by.get(r, 0) > 0 for r in culprits)]
    by = median(max(late.by.get(r, 0) for r in culprits) for late in late_in)
    own_cost = (_cost(late, culprits) for late in late_in)
    cost = median(own_cost) if again else _mean_cost(lates, culprits, looked_at.steps)
    stood = _stood(view, looked_at, culprits, by)
    found: tuple[Lateness, float, tuple[str, ...]] = ("core", stood, ())
    on_device = all(device(view.ranks[r]) for r in culprits)
    # What the host stands in makes a device late only where that has nothing to do meanwhile.
    starved = max(of.get("launch", 0.0) + of.get("host", 0.0) for of in excess.values())
    by_host = not on_device or starved >= CAUSE_SHARE * by
    if not stood or stood < CAUSE_SHARE * by or not by_host:
        found = _cause(excess, by)
    cause, cause_ns, phases = found
    if cause == "compute" and _idle(view, looked_at, lates, culprits) >= CAUSE_SHARE * cause_ns:
        cause = "idle"
    blocking, where, blocked_ns = blocked(view, looked_at, culprits)
    long = blocked_ns >= CAUSE_SHARE * by
    own_load = blocking is not None and blocking.call not in _OF_LOADERS
    waits = cause == "compute" and on_device  # for its device
    if long and by_host and not waits and cause in ("core", "compute", "idle", "host", "unknown"):
        cause, cause_ns, phases = "blocked", blocked_ns, ()
    elif not (long and {"launch": True, "data": own_load}.get(cause, False)):
        blocking = where = None
    if cause == "data" and blocking is None:  # without it the others' loaders would hold them up
        others = (busy for r, busy in busy_loaders(view, looked_at).items() if r not in culprits)
        cost = min(cost, (1 - max(others, default=0.0)) * looked_at.mean_ns)
    if _by_thread(view, late_in, culprits[0]):
        cause, cause_ns, phases = "thread", by, tuple(view.ranks[culprits[0]].threads)
        blocking = where = None
    newest = late_in[-1].row
    call = _call(view, looked_at, late_in, culprits[0], cause_ns) if cause == "host" else ""
    if cause == "host" and not call and not _is_contended(view, looked_at, culprits, by):
        busy, at, busy_ns = blocked(view, looked_at, culprits, wire.BUSY)
        blocking, where = (busy, at) if busy_ns >= CAUSE_SHARE * by else (None, None)
    facts = Straggler(
        label=Label(newest.label), num_late=len(late_in), num_steps=len(looked_at.steps), by_ns=by,
        cause=cause, cause_ns=cause_ns, phases=phases, step_ns=looked_at.step_ns,
        recurring=again or culprits == slow_loaders(view, looked_at),
        timed=_is_timed(view, looked_at, culprits, by),
        contended=cause == "compute" and _is_contended(view, looked_at, culprits, by),
        own_ns=cost if cause == "core" else min(cost, by - stood),
        whole_host=_whole_host(view, culprits), late=tuple(culprits), blocking=blocking,
        pid=view.ranks[culprits[0]].pid, rank=culprits[0], unit=looked_at.unit, call=call,
    )  # fmt: skip
    return Candidate(
        kind="straggler", ranks=tuple(a.rank for a in newest.arrivals if a.rank not in culprits),
        culprits=tuple(culprits), where=where, group=newest.group, seq=newest.seq,
        t_ns=first(newest), first_ns=first(late_in[0].row),
        cost_ns_per_step=round(cost) if looked_at.unit == "step" else None, facts=facts,
        evidence=Evidence(first(newest), culprits[0], "timeline", lane="phase"),
    ), facts  # fmt: skip


def _by_thread(view: View, lates: Sequence[_Late], rank: int) -> bool:
    """Return whether a rank issued most of these ops from another than its main thread, of which
    phases and samples tell nothing."""
    times = [late.row.issued[rank] for late in lates if rank in late.row.issued]
    table, visible = view.rows(view.ranks[rank], "issue")
    part = slice(int(table.when[:visible].searchsorted(min(times, default=0))), visible)
    of = np.isin(table.col("t0_ns")[part], times) & (table.col("flags")[part] & _OTHER != 0)
    return bool(2 * of.sum() > len(times))


def _call(view: View, looked_at: Window, lates: Sequence[_Late], rank: int, by: float) -> str:
    """Return the call that takes the rank that much longer than the first to arrive; or empty."""
    calls = Counter[str]()
    for late in lates[-8:]:
        before = _before(view, looked_at, late)
        first = min(before, key=lambda of: late.by[of], default=rank)
        if rank in before:
            calls[call_in(view, (rank, before[rank]), (first, before[first]), by)] += 1
    return calls.most_common(1)[0][0] if calls else ""


def _cost(late: _Late, culprits: Sequence[int]) -> int:
    """Return by how much the step would have been shorter without the culprits, in ns."""
    others = [by for rank, by in late.by.items() if rank not in culprits]
    return max(0, max(late.by.values()) - max(others, default=0))


def _mean_cost(lates: Sequence[_Late], culprits: Sequence[int], steps: Sequence[int]) -> float:
    """Return the cost of culprits in the mean step, where another rank comes last in most steps."""
    by = {r: sum(late.by.get(r, 0) for late in lates) / len(steps) for r in lates[0].by}
    others = [ns for rank, ns in by.items() if rank not in culprits]
    return max(0.0, max(by.values()) - max(others, default=0.0))


def _whole_host(view: View, culprits: Sequence[int]) -> str:
    """Return the host all of whose ranks are culprits, if there are other hosts; else empty."""
    hosts = {view.ranks[r].host for r in culprits if r in view.ranks}
    if len(hosts) != 1 or len({process.host for process in view.ranks.values()}) < 2:
        return ""
    (host,) = hosts
    there = [rank for rank, process in view.ranks.items() if process.host == host]
    return host if sorted(there) == sorted(culprits) and there[1:] else ""


def _stood(view: View, looked_at: Window, culprits: Sequence[int], by: float) -> float:
    """Return how much longer than the others the culprits wait, runnable, for a core, in ns per
    step: at most their lateness ``by`` less what they run for longer."""
    taken = scheduled(view, looked_at)
    usual = [taken[rank] for rank in taken if rank not in culprits]
    if not usual or not taken.keys() >= set(culprits):
        return 0.0
    ran, stood = (median(each) for each in zip(*usual, strict=True))
    runs = max(taken[rank][0] for rank in culprits)
    longer = runs - ran if runs > (1 + OF_STEP) * ran else 0.0
    beyond = min(taken[rank][1] - stood for rank in culprits)
    return float(max(0.0, min(beyond, by - longer) if longer else beyond))


def _is_timed(view: View, looked_at: Window, culprits: Sequence[int], by: float) -> bool:
    """Return whether each culprit is known to run longer than the others, or to wait less for a
    core than it is late; other ranks may wait as long elsewhere in the step."""
    taken = scheduled(view, looked_at)
    usual = [ran for rank, (ran, _) in taken.items() if rank not in culprits]
    least = (median(usual) if usual else 0.0) + CAUSE_SHARE * by
    return all(
        rank in taken and (taken[rank][0] >= least or taken[rank][1] < by) for rank in culprits
    )


def _is_contended(view: View, looked_at: Window, culprits: Sequence[int], by: float) -> bool:
    """Return whether each culprit's CPU time is hardly longer than the others': then other load on
    the host makes it late, not its own work."""
    taken = scheduled(view, looked_at)
    usual = [ran for rank, (ran, _) in taken.items() if rank not in culprits]
    most = (median(usual) if usual else 0.0) + CAUSE_SHARE * by
    return bool(usual) and all(
        rank in taken and taken[rank][0] < most and not device(view.ranks[rank])
        for rank in culprits
    )


def _idle(view: View, looked_at: Window, lates: Sequence[_Late], culprits: Sequence[int]) -> float:
    """Return the time of a step, in ns, that each culprit's main thread slept or waited inside its
    compute. 0 if not known, if a device computes, and in paced runs, where sleep stands for
    compute."""
    taken, idle = scheduled(view, looked_at), []
    for rank in culprits:
        if rank not in taken or device(view.ranks[rank]) or view.store.notes.get("paced"):
            return 0.0
        found = (phases_in(view, rank, whole) for late in lates[-8:]
                 if (whole := _before(view, looked_at, late).get(rank)) is not None)  # fmt: skip
        spent = [sum(phases.get(name, 0) for name in COMPUTE) for phases in found]
        idle.append((median(spent) if spent else 0.0) - sum(taken[rank]))
    return min(idle)


def _workers(excess: Excess, culprits: Sequence[int]) -> list[int]:
    """Leave out culprits that merely wait, in earlier ops, for one that works or sleeps longer."""
    own = {
        rank: sum(ns for name, ns in excess[rank].items() if name != "communication")
        for rank in culprits
    }
    most = max(own.values(), default=0.0)
    return [rank for rank in culprits if most <= 0 or own[rank] >= CAUSE_SHARE * most]


def _excess(
    view: View, looked_at: Window, lates: Sequence[_Late], culprits: Sequence[int]
) -> Excess:
    """Return culprit -> phase -> time beyond the others', in ns, from the begin of the step to the
    collective at which it is late."""
    more: dict[int, dict[str, list[float]]] = {rank: defaultdict(list) for rank in culprits}
    for late in lates[-8:]:
        came = [a.rank for a in late.row.arrivals]
        alike = [rank for rank in came if rank not in culprits]
        looked = {*culprits, *alike[:: max(1, len(alike) // COMPARED)]}
        before = {r: span for r, span in _before(view, looked_at, late).items() if r in looked}
        read_ahead(view, PHASE_TABLES, before)
        spent = {
            r: phases_in(view, r, before[r]) if r in before else {} for r in came if r in looked
        }
        others = [spent[rank] for rank in spent if rank not in culprits]
        for name in {name for phases in spent.values() for name in phases}:
            usual = median(phases.get(name, 0) for phases in others) if others else 0
            for rank in culprits:
                if rank in spent:
                    more[rank][name].append(spent[rank].get(name, 0) - usual)
    return {
        rank: {name: median(values) for name, values in of.items()} for rank, of in more.items()
    }


def _cause(by_rank: Excess, lateness: float) -> tuple[Lateness, float, tuple[str, ...]]:
    """Return (cause, its ns, compute phases that take longer), by the culprits' additional time."""
    names = {name for of in by_rank.values() for name in of}
    excess = {name: max(of.get(name, 0.0) for of in by_rank.values()) for name in names}
    compute = sum(max(0.0, excess.get(name, 0)) for name in COMPUTE)
    if excess.get("data", 0) >= CAUSE_SHARE * lateness:
        return "data", excess["data"], ()
    if compute >= CAUSE_SHARE * lateness:
        longer = tuple(n for n in COMPUTE if excess.get(n, 0) >= 0.2 * compute)
        unlaunched = excess.get("launch", 0)
        if unlaunched >= CAUSE_SHARE * compute:
            return "launch", unlaunched, longer
        return "compute", compute, longer
    if excess.get("communication", 0) >= CAUSE_SHARE * lateness:
        return "communication", excess["communication"], ()
    if excess.get("host", 0) >= CAUSE_SHARE * lateness:
        return "host", excess["host"], ()
    return "unknown", 0.0, ()


def _before(view: View, looked_at: Window, late: _Late) -> dict[int, Interval]:
    """Return rank -> interval from the begin of its step to its arrival; of devices from the first
    one's begin: what delays a rank's begin is part of its lateness."""
    came = late.row.issued
    spans = {r: span for r, span in looked_at.spans[late.step].items() if r in came}
    first = min((t0 for t0, _ in spans.values()), default=0) if times(view) == "device" else None
    return {
        rank: (min(t0 if first is None else first, came[rank]), came[rank])
        for rank, (t0, _) in spans.items() if rank in view.ranks
    }  # fmt: skip
