"""Finds memory that grows, is uneven over ranks, is nearly full, or ran out."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.exits import bad_ends, failure
from pardbg.analysis.findings.finding import Candidate, Evidence
from pardbg.analysis.findings.kinds.device_kinds import Cause, OutOfMemory
from pardbg.analysis.findings.kinds.memory_kinds import (
    MemoryCreep,
    MemoryImbalance,
    MemoryNearLimit,
)
from pardbg.analysis.findings.speed.windows import Window, per_window
from pardbg.analysis.hangs.stacks import place
from pardbg.analysis.memory.breakdown import latest_bytes, rows_named
from pardbg.store.definitions import FailedRequest
from pardbg.store.process import Process
from pardbg.store.table import Array

IMBALANCE: Final = 0.25
"""Share above the median of the ranks that counts as imbalance."""
IMBALANCE_BYTES: Final = 64 << 20
CREEP_STEPS: Final = 24
"""Minimum number of steps over which growth must be seen."""
CREEP_SINCE: Final = 10
"""Steps of warm-up, left out: allocators, caches and optimizer state still fill."""
CREEP_BYTES: Final = 16 << 20
RSS_BYTES: Final = 64 << 20
"""Least growth of a process's resident memory, in bytes; fragmentation alone makes it grow for
hundreds of steps."""
CREEP_SHARE: Final = 0.04
PARTS: Final = 6
"""Number of parts of the time; growth is steady if each rises by its share, within half."""
SLOWS_DOWN: Final = 0.75
"""Least ratio of growth at the end to growth at the start: warm-ups slow down, leaks do not."""
NEAR: Final = 0.92
OTHERS: Final = 0.1
"""Share of a device that other processes must hold to be the cause: drivers and libraries take up
to a few percent."""
UNUSED: Final = 0.1
"""Share of a device that must be reserved and free for fragmentation to be the cause: a little
always is."""
GROWN: Final = 0.1
"""Share of the allocated bytes that steady growth must have added to be the cause of a failure."""
_ROWS: Final = 8192
_PARTS: Final = ("parameters", "gradients", "optimizer")
_TOTALS: Final = ("allocated", "rss")


@per_window
def memory(view: View, looked_at: Window) -> Iterable[Candidate]:
    """Find creep, imbalance and memory near its limit at the window's end; the cursor must not
    matter, as the result is kept for the window."""
    view = View(view.store, min(view.t_ns, looked_at.end_ns))
    yield from _creep(view, looked_at)
    yield from _imbalance(view, looked_at)
    yield from _near(view, looked_at)


def _total(view: View, process: Process) -> tuple[str, int] | None:
    """Return (``allocated`` or ``rss``, newest bytes) of a process; None: neither is known."""
    latest = latest_bytes(view, process)
    for kind in _TOTALS:
        if latest.get(kind, (0, 0))[0] > 0:
            return kind, latest[kind][0]
    return None


def _series(view: View, process: Process, kind: str, since: int) -> tuple[Array, Array]:
    """Return (steps, bytes) of the newest totals since a step."""
    table, rows = rows_named(view, process, kind, _ROWS)
    steps = table.col("step")[rows].astype(np.int64)
    keep = steps >= since
    return steps[keep], table.col("a")[rows][keep]


def _growth(view: View, process: Process) -> tuple[float, int] | None:
    """Return (bytes a step, steps) of a rank's steady growth up to the cursor."""
    total = _total(view, process)
    if total is None:
        return None
    grown = growth(*_series(view, process, total[0], since=CREEP_SINCE))
    return None if grown is None else grown[:2]


def _creep(view: View, looked_at: Window) -> Iterable[Candidate]:
    for rank, process in view.ranks.items():
        total = _total(view, process)
        if total is None:
            continue
        kind, now = total
        least = max(RSS_BYTES if kind == "rss" else CREEP_BYTES, CREEP_SHARE * now)
        steps, sizes = _series(view, process, kind, since=CREEP_SINCE)
        if not len(sizes) or np.ptp(sizes) < least / 2:
            continue  # growth between the first and last sixth is less than the whole range
        grown = growth(steps, sizes)
        if grown is None or grown[0] * grown[1] < least:
            continue
        per_step, _, since = grown
        latest = latest_bytes(view, process)
        known = sum(latest.get(n, (0, 0))[0] for n in ("parameters", "gradients", "optimizer"))
        yield Candidate(
            kind="memory-creep", ranks=(rank,), culprits=(rank,), t_ns=looked_at.end_ns,
            first_ns=_begin_of(view, process, since),
            facts=MemoryCreep(
                per_step, since, looked_at.steps[-1], now, kind, known, looked_at.step_ns
            ),
        )  # fmt: skip


def growth(steps: Array, sizes: Array) -> tuple[float, int, int] | None:
    """Return (bytes per step, number of steps, first step) of a steady growth up to the end, over
    the whole time, else its last three quarters, else its last half; None: no steady growth."""
    if len(steps) < 2 * PARTS or steps[-1] - steps[0] < CREEP_STEPS:
        return None
    length = int(steps[-1] - steps[0])
    for share in (1.0, 0.75, 0.5):
        first = int(steps[-1]) - max(CREEP_STEPS, int(share * length))
        found = _steady(steps[steps >= first], sizes[steps >= first])
        if found is not None:
            return found, int(steps[-1]) - first, first
    return None


def _steady(steps: Array, sizes: Array) -> float | None:
    """Return bytes per step if each of PARTS rises by half to twice the mean rise."""
    if len(steps) < 2 * PARTS:
        return None
    middles = _medians(sizes)
    mean = (middles[-1] - middles[0]) / (PARTS - 1)
    rises = [after - before for before, after in pairwise(middles)]
    if mean <= 0 or min(rises) < 0.5 * mean or max(rises) > 2 * mean:
        return None
    if sum(rises[-2:]) < SLOWS_DOWN * sum(rises[:2]):
        return None
    at = _medians(steps)
    return (middles[-1] - middles[0]) / max(at[-1] - at[0], 1.0)


def _medians(values: Array) -> list[float]:
    """Return the medians of PARTS equal parts; numpy takes ten times as long on short ones."""
    each, more = divmod(len(values), PARTS)
    ends = [each * part + min(part, more) for part in range(PARTS + 1)]
    listed = values.tolist()
    return [median(listed[begin:end]) for begin, end in pairwise(ends)]


def _begin_of(view: View, process: Process, step: int) -> int:
    table, rows = view.step_rows(process, "step", step)
    return int(table.col("t0_ns")[rows[0]]) if len(rows) else process.started_ns or 0


def _imbalance(view: View, looked_at: Window) -> Iterable[Candidate]:
    """Find ranks that use much more than the others, both now and in the middle of the window.
    Totals of one kind are compared, if those of more than half of the ranks are known. A process
    (``rss``) counts by its least since the middle, others by their most, as freed memory may stay
    with an allocator by chance."""
    middle = looked_at.steps[len(looked_at.steps) // 2]
    by_kind: dict[str, dict[int, tuple[int, int, int, int]]] = defaultdict(dict)
    for rank, process in view.ranks.items():
        if total := _total(view, process):
            steps, sizes = _series(view, process, total[0], since=0)
            if len(early := sizes[steps <= middle]):
                low, high = int(min(sizes[steps >= middle], default=total[1])), int(max(sizes))
                ends = (low, high) if total[0] == "rss" else (total[1], total[1])
                by_kind[total[0]][rank] = int(early[-1]), total[1], *ends
    for kind, of in by_kind.items():
        if len(of) * 2 <= max(2, len(view.ranks)):
            continue
        before, newest, least, most = ({rank: at[n] for rank, at in of.items()} for n in range(4))
        far = _far_above(newest) & _far_above(before) & _far_above(least, most)
        over = [rank for rank in newest if rank in far]
        if not over or len(over) * 2 > len(newest):
            continue
        rank = max(over, key=lambda r: newest[r])
        usual = _median_without(sorted(newest.values()), newest[rank])
        part, more = _larger_part(view, rank)
        yield Candidate(
            kind="memory-imbalance", ranks=tuple(newest), culprits=tuple(over),
            t_ns=looked_at.end_ns, first_ns=looked_at.begin_ns,
            evidence=Evidence(looked_at.end_ns, rank, "memory"),
            facts=MemoryImbalance(rank, newest[rank], usual, kind, part, more),
        )  # fmt: skip


def _far_above(sizes: Mapping[int, int], usual: Mapping[int, int] | None = None) -> set[int]:
    """Return ranks that use much more than the median of the others, of ``usual`` if given."""
    usual = sizes if usual is None else usual
    ordered = sorted(usual.values())
    found = set()
    for rank, size in sizes.items():
        others = _median_without(ordered, usual[rank])
        if size - others >= max(IMBALANCE_BYTES, IMBALANCE * others):
            found.add(rank)
    return found


def _median_without(ordered: Sequence[int], value: int) -> float:
    """Return the median of sorted numbers without one that equals ``value``, with no second sort
    (there may be a thousand ranks)."""
    at, count = bisect_left(ordered, value), len(ordered) - 1

    def nth(n: int) -> int:
        return ordered[n if n < at else n + 1]

    return nth(count // 2) if count % 2 else (nth(count // 2 - 1) + nth(count // 2)) / 2


def _larger_part(view: View, rank: int) -> tuple[str, float]:
    """Return (part with the most bytes above the median, these bytes); ``""``: not enough."""
    names = ("parameters", "gradients", "optimizer", "activations")
    latest = {r: latest_bytes(view, process) for r, process in view.ranks.items()}
    more = {
        name: latest[rank].get(name, (0, 0))[0]
        - median(latest[r].get(name, (0, 0))[0] for r in latest)
        for name in names
    }
    largest = max(more, key=lambda name: more[name])
    return (largest if more[largest] >= IMBALANCE_BYTES / 2 else ""), more[largest]


def _near(view: View, looked_at: Window) -> Iterable[Candidate]:
    """Find memory near its limit (MEMORY ``limit``): each device, and each cgroup once."""
    cgroups: dict[tuple[str, int], list[int]] = defaultdict(list)
    for rank, process in view.ranks.items():
        limit, shared = latest_bytes(view, process).get("limit", (0, 0))
        if limit > 0 and shared > 0:
            cgroups[process.host, limit].append(rank)
        elif limit > 0:
            yield from _full_device(view, looked_at, rank, limit)
    for (host, limit), ranks in cgroups.items():
        yield from _full_cgroup(view, looked_at, host, limit, ranks)


def _full_device(view: View, looked_at: Window, rank: int, limit: int) -> Iterable[Candidate]:
    latest, total = latest_bytes(view, view.ranks[rank]), _total(view, view.ranks[rank])
    used = max(total[1] if total is not None else 0, latest.get("reserved", (0, 0))[0])
    if used < NEAR * limit:
        return
    yield Candidate(
        kind="memory-near-limit", ranks=(rank,), culprits=(rank,), t_ns=looked_at.end_ns,
        facts=MemoryNearLimit(used, limit, "", rank, used),
    )  # fmt: skip


def _full_cgroup(
    view: View, looked_at: Window, host: str, limit: int, ranks: Sequence[int]
) -> Iterable[Candidate]:
    """Find a cgroup near its limit; the kernel kills one of its processes when it is reached."""
    used = max(latest_bytes(view, view.ranks[rank])["limit"][1] for rank in ranks)
    if used < NEAR * limit:
        return
    own = {rank: total[1] for rank in ranks if (total := _total(view, view.ranks[rank]))}
    most = max(own, key=lambda rank: own[rank], default=ranks[0])
    yield Candidate(
        kind="memory-near-limit", ranks=tuple(ranks), t_ns=looked_at.end_ns,
        culprits=tuple(ranks) if len(ranks) == 1 else (),
        evidence=Evidence(looked_at.end_ns, most, "memory"),
        facts=MemoryNearLimit(used, limit, host, most, own.get(most, 0)),
    )  # fmt: skip


# -- requests that failed


def failed_requests(view: View) -> Iterator[Candidate]:
    """Find the last failed request of each rank."""
    fatal = {
        end.rank for end in bad_ends(view)
        if end.how == "exception" and failure(view, end.rank).began_as == "OutOfMemoryError"
    }  # fmt: skip
    for rank, process in view.ranks.items():
        known = [one for one in process.failed_requests if one.t_ns <= view.t_ns]
        if known:
            yield _candidate(view, rank, process, known[-1], rank in fatal)


def _candidate(
    view: View, rank: int, process: Process, request: FailedRequest, fatal: bool
) -> Candidate:
    usual = _usual(view, rank)
    grown = _growth(view, process)
    cause, more = _cause(request, usual, grown)
    others = _others(request)
    frames = request.frames
    if fatal and place(frames) is None:  # autograd's threads have no frames of the program
        frames = failure(view, rank).origin
    phase = request.action_id or request.phase_id
    doing = process.name(phase) if phase else ""
    if request.action_id and request.stage >= 0:
        doing = f"{request.stage}{doing}{request.microbatch if request.microbatch >= 0 else ''}"
    return Candidate(
        kind="out-of-memory", ranks=(rank,), culprits=(rank,), t_ns=request.t_ns,
        where=place(frames),
        facts=OutOfMemory(
            cause, fatal, request.asked_bytes, request.limit_bytes, request.allocated_bytes,
            max(0, request.reserved_bytes - request.allocated_bytes), others,
            tuple(held(request).items()), doing, request.step, usual.get("total"), more,
            grown[0] if grown is not None else None,
        ),
    )  # fmt: skip


def held(request: FailedRequest) -> dict[str, int]:
    """Return the allocated bytes by purpose; ``activations`` is the remainder."""
    return {
        "parameters": request.parameters_bytes, "gradients": request.gradients_bytes,
        "optimizer": request.optimizer_bytes, "activations": request.other_bytes,
    }  # fmt: skip


def _others(request: FailedRequest) -> int | None:
    if request.free_bytes is None:
        return None
    return max(0, request.limit_bytes - request.reserved_bytes - request.free_bytes)


def _usual(view: View, rank: int) -> dict[str, float]:
    """Return the other ranks' median peak as ``total``, and that of each part; or empty."""
    processes = [process for r, process in view.ranks.items() if r != rank]
    others = [latest_bytes(view, process) for process in processes]
    totals = [
        max([latest["allocated"][1], *_wanted(view, process)])
        for latest, process in zip(others, processes, strict=True) if "allocated" in latest
    ]  # fmt: skip
    if not totals:
        return {}
    parts = {
        name: median(latest.get(name, (0, 0))[0] for latest in others) for name in _PARTS
    }  # fmt: skip
    total = float(median(totals))
    return {**parts, "total": total, "activations": max(0.0, total - sum(parts.values()))}


def _wanted(view: View, process: Process) -> list[int]:
    """Return the bytes that a rank would have allocated had its failed requests succeeded."""
    failed = [one for one in process.failed_requests if one.t_ns <= view.t_ns]
    return [one.allocated_bytes + (one.asked_bytes or 0) for one in failed]


def _cause(
    request: FailedRequest, usual: dict[str, float], grown: tuple[float, int] | None
) -> tuple[Cause, str]:
    """Return (cause of a failed request, for an imbalance the part this rank has more of)."""
    asked, limit = request.asked_bytes or 0, request.limit_bytes
    others = _others(request)
    if 0 < limit < asked:
        return "request", ""
    unused = request.reserved_bytes - request.allocated_bytes
    if asked and unused >= max(asked, UNUSED * limit):
        return "fragmentation", ""
    if others is not None and others >= max(asked, OTHERS * limit):
        return "others", ""
    parts = held(request)
    if grown is not None and grown[0] * grown[1] >= GROWN * request.allocated_bytes:
        return "growth", ""
    total = usual.get("total")
    if total is not None and request.allocated_bytes + asked >= (1 + IMBALANCE) * total:
        more = max(parts, key=lambda name: parts[name] - usual[name])
        return "imbalance", more
    largest: dict[str, Cause] = {
        "parameters": "parameters", "gradients": "gradients", "optimizer": "optimizer",
        "activations": "activations",
    }  # fmt: skip
    return largest[max(parts, key=lambda name: parts[name])], ""
