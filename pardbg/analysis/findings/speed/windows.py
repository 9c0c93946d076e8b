"""Sliding window over recent steps, for findings about speed.

A window moves on every few steps, and findings in it are kept till then: a live step costs the same
however long the run, and nothing flickers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from statistics import fmean, median
from typing import Final, Literal

import numpy as np

from pardbg.analysis.base.asof import View, per_look, per_store, per_view
from pardbg.analysis.base.holds import was_held
from pardbg.analysis.base.intervals import Interval, clip, subtract, total, union
from pardbg.analysis.base.leads import host_bound, streams_held
from pardbg.analysis.base.spans import records, stretches
from pardbg.analysis.base.steps import last_step_rows
from pardbg.analysis.base.times import times
from pardbg.analysis.comm.collective_columns import CollectiveColumns, of_rows
from pardbg.analysis.comm.matching import collectives, matched_in
from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.comm.overlap import Overlap, overlaps
from pardbg.analysis.findings.finding import Candidate
from pardbg.events import fields
from pardbg.store.process import Process
from pardbg.store.table import Array

LAST: Final = 12
LEAST: Final = 6
"""Minimum number of steps for calling anything recurring."""
OFTEN: Final = 0.8
"""Share of the steps in which something must occur to be recurring."""
WARM_UP: Final = 2
"""Number of a run's first steps that are left out."""
_MOST: Final = 4
"""Maximum number of windows kept: with a thousand ranks one takes 2 MB."""
MOVES: Final = 4
"""Number of steps after which a window moves on."""
MAX_ISSUES: Final = 1 << 21
"""Maximum number of issues of collectives that a window reads, over all ranks."""
BUSY_HOST: Final = 0.05
"""Share of a step for which ranks of an overloaded host wait, runnable, for a core."""
LEAST_NS: Final = 500_000_000
"""Minimum time between two of the kernel's figures, in ns; they come only some times a second."""
_PHASES_BACK: Final = 1 << 12
"""Phases per rank among which backwards are looked for, if no steps are counted."""
Unit = Literal["step", "round", "op"]
"""Unit of a window: a training step; without an optimizer that counts steps, the collectives of one
backward; without backward, one collective."""


@dataclass(frozen=True, eq=False)
class Window:
    """Recent steps that all ranks ended, oldest first, without those held by the debugger."""

    epoch: int
    newest: int
    steps: tuple[int, ...]
    spans: dict[int, dict[int, Interval]]
    """step -> rank -> (t0, t1)"""
    since_ns: int
    """Begin of the step before the first one, in ns."""
    rows: CollectiveColumns | None = None
    """Collectives of the window, if the program counts no steps; else None."""
    unit: Unit = "step"
    """Unit of ``steps``."""

    @cached_property
    def step_ns(self) -> float:
        """Return the median over steps of the longest time over ranks, in ns."""
        return median(max(b - a for a, b in self.spans[step].values()) for step in self.steps)

    @cached_property
    def mean_ns(self) -> float:
        """Return the mean over steps of the longest time over ranks, in ns."""
        return fmean(max(b - a for a, b in self.spans[step].values()) for step in self.steps)

    @cached_property
    def begin_ns(self) -> int:
        return min(a for a, _ in self.spans[self.steps[0]].values())

    @cached_property
    def end_ns(self) -> int:
        return max(b for _, b in self.spans[self.steps[-1]].values())


@per_view
def window(view: View) -> Window | None:
    """Return the window at the cursor; None while it has too few steps."""
    newest = _newest(view)
    if newest is None:
        return _without_steps(view)
    if newest >= 2 * MOVES and view.run_end is None:
        newest -= newest % MOVES
    return _read(view, newest)


def _newest(view: View) -> int | None:
    """Return the newest step that every rank which counts steps has ended; None: none does."""
    steps = view.all("step").newest("step")
    return int(steps.min()) if len(steps) else None


@per_store(lambda view, newest: (view.epoch, newest), most=_MOST)
def _read(view: View, newest: int) -> Window | None:
    spans: dict[int, dict[int, Interval]] = defaultdict(dict)
    counting = 0
    for rank, process in view.ranks.items():
        ended = last_step_rows(view, process, 2 * LAST)
        counting += bool(ended)
        for step, t0, t1 in ended:
            spans[step][rank] = (t0, t1)
    whole = [s for s in sorted(spans) if WARM_UP <= s <= newest and len(spans[s]) == counting]
    free = [
        s for s in whole
        if not was_held(view, min(a for a, _ in spans[s].values()),
                        max(b for _, b in spans[s].values()))
    ][-LAST:]  # fmt: skip
    if len(free) < LEAST:
        return None
    before = max((step for step in spans if step < free[0]), default=free[0])
    return Window(
        view.epoch, newest, tuple(free), {step: spans[step] for step in free},
        min(begin for begin, _ in spans[before].values()),
    )  # fmt: skip


def _without_steps(view: View) -> Window | None:
    """Return a window by the steps that collectives belong to; if that is only one, by rounds of
    backward, else by single collectives."""
    rows = [
        row for row in collectives(view)
        if row.verdict == "matched" and len(row.arrivals) > 1 and not was_held(view, *_span(row))
    ]  # fmt: skip
    if len({row.step for row in rows}) == 1 and (rounds := _rounds(view, rows)) is not None:
        return rounds
    several = len({row.step for row in rows}) > 1
    by_step: dict[int, list[CollectiveRow]] = defaultdict(list)
    for i, row in enumerate(rows):
        by_step[(row.step or 0) if several else i].append(row)
    steps = tuple(sorted(by_step))[-LAST:]
    if len(steps) < LEAST:
        return None
    begins = [min(_span(row)[0] for row in by_step[step]) for step in steps]
    ends = [*begins[1:], max(_span(row)[1] for row in by_step[steps[-1]])]
    spans = {
        step: {a.rank: (begin, end) for row in by_step[step] for a in row.arrivals}
        for step, begin, end in zip(steps, begins, ends, strict=True)
    }
    return _by_rows(view, by_step, spans, "step" if several else "op")


def _rounds(view: View, rows: Sequence[CollectiveRow]) -> Window | None:
    """Return a window by rounds: a rank's round ends with its last collective after or in one
    backward, and begins with the end of the round before. None if there are too few rounds."""
    begun = {rank: _backwards(view, process) for rank, process in view.ranks.items()}
    by_round: dict[int, list[CollectiveRow]] = defaultdict(list)
    for row in rows:
        first = min((rank for rank in row.issued if len(begun.get(rank, ()))), default=None)
        if first is not None:
            by_round[int(begun[first].searchsorted(row.issued[first], "right"))].append(row)
    spans: dict[int, dict[int, Interval]] = {}
    ended: dict[int, int] = {}
    for number, own in sorted(by_round.items()):
        last = {rank: t_ns for row in own for rank, t_ns in row.issued.items()}
        spans[number] = {r: (ended[r], t_ns) for r, t_ns in last.items() if r in ended}
        ended |= last
    whole = {number: of for number, of in spans.items() if len(of) > 1}
    return _by_rows(view, by_round, whole, "round") if len(whole) >= LEAST else None


def _backwards(view: View, process: Process) -> Array:
    """Return the begins of a rank's last backwards, in ns."""
    table, visible = view.rows(process, "phase")
    lo = max(0, visible - _PHASES_BACK)
    ids = process.ids("backward")
    begun: Array = table.col("t0_ns")[lo:visible][np.isin(table.col("name_id")[lo:visible], ids)]
    return begun


def _by_rows(
    view: View, by_step: Mapping[int, Sequence[CollectiveRow]],
    spans: dict[int, dict[int, Interval]], unit: Unit,
) -> Window:  # fmt: skip
    steps = tuple(sorted(spans))[-LAST:]
    told = [(s, row) for s in steps for row in by_step[s]]
    columns = of_rows([s for s, _ in told], [row for _, row in told])
    since = min(begin for begin, _ in spans[steps[0]].values())
    kept = {step: spans[step] for step in steps}
    return Window(view.epoch, told[-1][1].seq, steps, kept, since, columns, unit)


def _span(row: CollectiveRow) -> Interval:
    """Return the interval from the first issue of a collective to the last."""
    issued = row.issued.values()
    return min(issued), max(issued)


def per_window(
    detect: Callable[[View, Window], Iterable[Candidate]],
) -> Callable[[View], tuple[Candidate, ...]]:
    """Return a detector from a function of a window, which runs once per window."""

    name = f"{detect.__module__}.{detect.__qualname__}"

    @per_store(lambda _, at: (at.epoch, at.newest, len(at.steps)), name)
    def found(view: View, /, at: Window) -> tuple[Candidate, ...]:
        return tuple(detect(view, at))

    @wraps(detect)
    def detector(view: View) -> tuple[Candidate, ...]:
        looked_at = window(view)
        return () if looked_at is None else found(view, looked_at)

    return detector


@per_look
def rows_in(view: View, looked_at: Window) -> CollectiveColumns:
    """Return the matched collectives of the window's steps."""
    if looked_at.rows is not None:
        return looked_at.rows
    return matched_in(view, looked_at.since_ns, looked_at.steps, MAX_ISSUES)


@per_look
def overlaps_in(view: View, looked_at: Window, rank: int) -> list[Overlap]:
    """Return a rank's overlap of communication and compute in each of its steps in the window."""
    spans = {s: looked_at.spans[s][rank] for s in looked_at.steps if rank in looked_at.spans[s]}
    of = _ops(view, looked_at)
    return overlaps(view, rank, spans, {step: of(rank, step) for step in spans}) if spans else []


@per_look
def _ops(view: View, looked_at: Window) -> Callable[[int, int], list[tuple[int, int, int]]]:
    """Return a function of rank and step to the times of the step's ops, as ``Ops``."""
    rows = rows_in(view, looked_at)
    parts, last = rows.parts, np.maximum.reduceat(rows.parts["issued_ns"], rows.starts)
    step, rank = rows.of["step"][rows.row_of], parts["rank"]
    order = np.lexsort((step, rank))
    keys = rank[order] << 32 | step[order]
    times = parts["issued_ns"], np.minimum(last[rows.row_of], parts["done_ns"]), parts["done_ns"]

    def of(rank: int, step: int) -> list[tuple[int, int, int]]:
        key = rank << 32 | step
        own = order[slice(*keys.searchsorted((key, key + 1)))]
        return list(zip(*(column[own].tolist() for column in times), strict=True))

    return of


def issued_since(view: View, name: str, since_ns: int) -> int:
    """Return the number of rows in a table of issued ops since a time, over all ranks."""
    rows = view.all(name)
    return int((rows.counts - rows.before(since_ns)).sum())


@per_view
def scheduled(view: View, looked_at: Window) -> dict[int, tuple[float, float]]:
    """Return rank -> (ns per step that its main thread ran, ns that it waited for a core)."""
    states, until = view.store.states, looked_at.end_ns
    since = min(looked_at.begin_ns, until - 2 * LEAST_NS)  # of short steps some before them, too
    (begin, before), (end, after) = (states.ranks(t_ns) for t_ns in (since, until))
    if begin is None or end is None or end - begin < LEAST_NS:
        return {}
    found: dict[int, tuple[float, float]] = {}
    for rank, process in view.ranks.items():
        first, last = (
            fields.integers(said.get(process.proc, {}), "scheduled") for said in (before, after)
        )
        if len(first) == len(last) == 2:
            ran, stood = (
                (b - a) * looked_at.step_ns / (end - begin)
                for a, b in zip(first, last, strict=True)
            )
            found[rank] = ran, stood
    return found


def overloaded(view: View, looked_at: Window) -> bool:
    """Return whether ranks usually wait for a core for long: the host makes them slow."""
    stood = [ns for _, ns in scheduled(view, looked_at).values()]
    return bool(stood) and median(stood) >= BUSY_HOST * looked_at.step_ns


def often(times: int, steps: Sequence[int]) -> bool:
    """Return whether ``times`` occurrences in these steps count as recurring."""
    return len(steps) >= LEAST and times >= OFTEN * len(steps)


COMPUTE: Final = ("forward", "backward", "optimizer", "pipeline")


PHASE_TABLES: Final = ("wait", "phase")
"""Tables that `phases_in` reads."""


def phases_in(view: View, rank: int, whole: Interval) -> dict[str, int]:
    """Return phase -> ns of the stretch. Waits for ops are ``communication`` wherever they lie;
    time in no phase is ``host``; ``launch`` is compute in which a device had nothing queued."""
    process = view.ranks[rank]
    on_device = times(view) == "device"  # where a wait of the host is none of the device's
    if on_device:
        waited = streams_held(view, process, whole)
    else:
        waited = stretches(view, process, "wait", whole)
    found: dict[str, int] = {}
    covered = waited
    computing: list[Interval] = []
    phases: dict[str, list[Interval]] = defaultdict(list)
    for one in records(view, process, "phase", whole):
        phases[process.name(one.name_id)].append((one.t0_ns, one.t1_ns))
    for name in ("data", *COMPUTE):
        inside = subtract(clip(phases[name], *whole), covered)
        found[name] = total(inside)
        covered = union([*covered, *inside])
        computing += inside if name != "data" else []
    found["communication"] = total(waited)
    bound = host_bound(view, rank, whole) if on_device else []
    found["launch"] = sum(total(clip(bound, *stretch)) for stretch in computing)
    found["host"] = whole[1] - whole[0] - total(clip(covered, *whole))
    return found


Stretch = tuple[int, Interval]
"""(rank, interval of its time in ns)"""


def call_in(view: View, own: Stretch, usual: Stretch, by_ns: float) -> str:
    """Return the call (torch.save) or the program's span that takes at least ``by_ns / 2`` longer
    in one stretch than in the other; empty: none does."""
    more = _calls(view, *own) - _calls(view, *usual)
    name, ns = more.most_common(1)[0] if more else ("", 0)
    return name if ns >= by_ns / 2 else ""


def _calls(view: View, rank: int, within: Interval) -> Counter[str]:
    """Return name -> ns of calls and spans that ended there; what goes on is not counted."""
    process, took = view.ranks[rank], Counter[str]()
    for table in ("call", "span"):
        for one in records(view, process, table, within):
            op = process.ops.get(one.name_id) if table == "call" else None
            name = op.op if op is not None else process.name(one.name_id)
            took[name] += one.t1_ns - max(one.t0_ns, within[0]) if one.t1_ns <= within[1] else 0
    return took
