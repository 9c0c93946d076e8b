"""Finds communication that costs step time: exposed collectives and runs of small ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from statistics import median
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.intervals import Interval, total, union
from pardbg.analysis.comm.collective_columns import CollectiveColumns
from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.comm.overlap import Overlap
from pardbg.analysis.findings.finding import Candidate, at_row, first
from pardbg.analysis.findings.kinds.speed_kinds import ExposedCommunication, SmallMessages
from pardbg.analysis.findings.speed.windows import Window, often, overlaps_in, per_window, rows_in

Group = tuple[int, str]
"""(epoch, key)"""
EXPOSED: Final = 0.2
"""Share of a step in which ranks stand still while data moves."""
EXPOSED_NS: Final = 10_000_000
MAX_RANKS: Final = 64
"""Maximum number of ranks whose overlap is computed; the others are taken to be alike."""
SMALL_BYTES: Final = 65_536
SMALL_RUN: Final = 8
"""Number of consecutive small collectives that counts as a loop over tensors."""
SMALL_GAP: Final = 1.0
"""Maximum gap in a run of ops, as a share of an op's own time: no compute to speak of."""
SMALL_OF_STEP: Final = 0.05


@per_window
def exposed(view: View, looked_at: Window) -> Iterable[Candidate]:
    """Find collectives that no compute hides, by their share of a step; needs counted steps."""
    if looked_at.unit != "step":
        return
    rows = rows_in(view, looked_at)
    ranks = sorted(looked_at.spans[looked_at.steps[-1]])[:MAX_RANKS]
    parts: dict[int, list[Overlap]] = defaultdict(list)
    for rank in ranks:
        for part in overlaps_in(view, looked_at, rank):
            parts[part.step].append(part)
    by_step = {
        step: (median(p.exposed_ns for p in made), median(p.step_ns for p in made))
        for step, made in sorted(parts.items())
    }  # fmt: skip
    loud = [s for s, (out, whole) in by_step.items() if out >= max(EXPOSED_NS, EXPOSED * whole)]
    if not often(len(loud), looked_at.steps):
        return
    cost = median(by_step[step][0] for step in loud)
    share = median(by_step[step][0] / by_step[step][1] for step in loud)
    wins = [(median(p.could_hide_ns for p in parts[s]), by_step[s][1]) for s in loud]
    win, win_share = median(ns for ns, _ in wins), median(ns / whole for ns, whole in wins)
    of_loud = np.flatnonzero(np.isin(rows.of["step"], loud))
    largest = rows.row(int(of_loud[np.argmax(np.maximum(rows.of["transfer_ns"][of_loud], 0))]))
    facts = ExposedCommunication(
        cost, share, win, win_share, largest.op, largest.bytes, largest.transfer_ns
    )
    yield Candidate(
        kind="exposed-communication", ranks=tuple(ranks), group=largest.group, seq=largest.seq,
        t_ns=first(largest), first_ns=looked_at.begin_ns, evidence=at_row(largest, None),
        cost_ns_per_step=0 if facts.too_long else round(win), facts=facts,
    )  # fmt: skip


# -- small messages


@per_window
def small_messages(view: View, looked_at: Window) -> Iterable[Candidate]:
    """Find loops over tensors with a collective for each, in each step."""
    if looked_at.unit != "step":
        return
    found: dict[tuple[Group, str], list[list[CollectiveRow]]] = defaultdict(list)
    told: set[tuple[str, str]] = set()
    for rows in _small(rows_in(view, looked_at)):
        runs: dict[tuple[Group, str], list[CollectiveRow]] = defaultdict(list)
        for run in _runs(rows):
            runs[run[0].key, run[0].op] += run
        for key, run in runs.items():
            found[key].append(run)
    for (_, op), steps in found.items():
        group = steps[-1][-1].group
        if (group, op) in told or not often(len(steps), looked_at.steps):
            continue  # one of several like groups is enough
        number = round(median(len(run) for run in steps))
        sent = median(sum(row.bytes for row in run) for run in steps)
        cost = median(_saved(run) for run in steps)
        if cost < SMALL_OF_STEP * looked_at.step_ns:
            continue
        newest = steps[-1][-1]
        told.add((group, op))
        yield Candidate(
            kind="small-messages", ranks=tuple(arrival.rank for arrival in newest.arrivals),
            group=group, seq=newest.seq, t_ns=first(newest), first_ns=first(steps[0][0]),
            cost_ns_per_step=round(cost), evidence=at_row(newest, None),
            facts=SmallMessages(op, number, sent, cost, looked_at.step_ns),
        )  # fmt: skip


def _small(rows: CollectiveColumns) -> Iterator[list[CollectiveRow]]:
    """Yield the small collectives of each step, in groups that have enough of them for a run."""
    barrier = rows.ops.index("barrier") if "barrier" in rows.ops else -1
    small = np.flatnonzero((rows.of["bytes"] < SMALL_BYTES) & (rows.of["op"] != barrier))
    which = rows.of["group"][small] << 32 | rows.of["step"][small]
    _, inverse, counts = np.unique(which, return_inverse=True, return_counts=True)
    small = small[counts[inverse] >= SMALL_RUN]
    for _, of_step in groupby(small.tolist(), key=lambda at: int(rows.of["step"][at])):
        yield rows.rows(list(of_step))


def _runs(rows: Sequence[CollectiveRow]) -> list[list[CollectiveRow]]:
    """Return runs of neighbours in one group: the same op, without compute between them."""
    made: dict[Group, list[list[CollectiveRow]]] = defaultdict(lambda: [[]])
    for row in rows:
        run = made[row.key][-1]
        if run and run[-1].op == row.op and _close(run[-1], row):
            run.append(row)
        else:
            made[row.key].append([row])
    return [run for runs in made.values() for run in runs if len(run) >= SMALL_RUN]


def _close(before: CollectiveRow, row: CollectiveRow) -> bool:
    """Return whether the last rank to arrive had no time for compute between two collectives."""
    begun = {a.rank: a.issued_ns for a in row.arrivals}
    for arrival in before.arrivals:
        begin, done, issued = arrival.issued_ns, arrival.completed_ns, begun.get(arrival.rank)
        if begin is None or done is None or issued is None:
            continue
        if issued - done <= SMALL_GAP * max(done - begin, 100_000):
            return True
    return False


def _saved(run: Sequence[CollectiveRow]) -> int:
    """Return the time that one op instead of the run would save, in ns: the time in which any op
    was under way, on the rank that waited least for others, less the longest op."""
    by_rank: dict[int, list[Interval]] = defaultdict(list)
    for row in run:
        for a in row.arrivals:
            if a.issued_ns is not None and a.completed_ns is not None:
                by_rank[a.rank].append((a.issued_ns, a.completed_ns))
    return min(
        (max(0, total(union(parts)) - max(end - begin for begin, end in parts))
         for parts in by_rank.values()),
        default=0,
    )  # fmt: skip
