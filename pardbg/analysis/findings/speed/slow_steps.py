"""Finds steps that are slow now and then: every k-th, or those with an unusually large op.

A straggler is late in most steps; here most steps are as usual, and some take half as long again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.holds import was_held
from pardbg.analysis.base.intervals import Interval
from pardbg.analysis.base.steps import last_step_rows
from pardbg.analysis.base.times import device
from pardbg.analysis.findings.finding import Candidate, Evidence
from pardbg.analysis.findings.kinds.speed_kinds import SlowSteps
from pardbg.analysis.findings.speed.system_calls import CAUSE_SHARE, blocked
from pardbg.analysis.findings.speed.windows import (
    COMPUTE,
    Window,
    call_in,
    per_window,
    phases_in,
)
from pardbg.analysis.hangs.blocking_calls import Blocking
from pardbg.words import size
from pardbg_agent.wire import BLOCKED, BUSY

LAST: Final = 256
"""Number of steps looked at; it is large as a period may be long."""
WARM_UP: Final = 8
MOST_RANKS: Final = 32
"""Maximum number of ranks whose steps are timed; ranks that wait take as long as slow ones."""
SLOW: Final = 0.5
SLOW_NS: Final = 20_000_000
SPREAD: Final = 4.0
"""Minimum excess of a slow step, in spreads of usual steps; ``SLOW``: as a share of one."""
AGAIN: Final = 4
"""Minimum number of slow steps that make a period; of a rank's pauses, one less."""
PAUSE: Final = 10
"""Minimum length of a pause, in usual steps."""
REGULAR: Final = 0.8
"""Minimum share of the period's steps that are slow, and of slow steps in the period."""
RARE: Final = 1 / 3
_BURSTS, _NEAR = 0.5, 2
"""Maximum share of slow steps where they may be bursts; steps before and after one that tell."""
LARGE: Final = 10
"""Factor by which an op is larger than any op of the usual steps."""
_LOOKED_AT: Final = 8
_WORDS: Final = {
    "data": "loading data", "communication": "in communication",
    "launch": "with nothing queued on its device",
    "host": "outside of forward and backward",
}  # fmt: skip
Steps = Mapping[int, Interval]


@dataclass(frozen=True, slots=True)
class _Cause:
    """Cause of one slow step."""

    ranks: tuple[int, ...]
    """Ranks that were slow; empty: all ranks alike, or not known."""
    what: str
    by_ns: int
    large: bool = False
    computes: bool = False
    """Whether the time is that of a compute phase, outside any call or span."""


@per_window
def slow_steps(view: View, looked_at: Window) -> Iterable[Candidate]:
    """Find at most one pattern of slow steps, once per window."""
    spans = _spans(view) if looked_at.rows is None else {}
    took = without_bursts({step: end - begin for step, (begin, end) in spans.items()})
    spans = {step: spans[step] for step in took}
    slow = outliers(took)
    if len(slow) < AGAIN - 1:
        return
    pauses = min(took[step] for step in slow) >= PAUSE * median(took.values())
    every = period(slow, list(took), AGAIN - pauses)
    usual = [step for step in took if step not in slow]
    if every:  # other slow steps have another cause
        (phase, _), *_ = Counter(step % every for step in slow).most_common()
        slow = [step for step in slow if step % every == phase]
    causes = [_cause(view, spans, step, usual) for step in slow[-_LOOKED_AT:]]
    enough = every and (len(slow) >= AGAIN or all(cause.ranks for cause in causes))
    if enough or all(cause.large for cause in causes):
        yield _candidate(view, looked_at, spans, slow, usual, every, causes)


def _spans(view: View) -> Steps:
    """Return step -> interval from first begin to last end, for steps the debugger held nowhere."""
    found: dict[int, list[Interval]] = defaultdict(list)
    timed = list(view.ranks.values())[:MOST_RANKS]
    for process in timed:
        for step, t0, t1 in last_step_rows(view, process, LAST):
            found[step].append((t0, t1))
    most = max((len(spans) for spans in found.values()), default=0)
    made = {
        step: (min(a for a, _ in spans), max(b for _, b in spans))
        for step, spans in sorted(found.items()) if step >= WARM_UP and len(spans) == most
    }  # fmt: skip
    return {step: span for step, span in made.items() if not was_held(view, *span)}


def without_bursts(took: Mapping[int, int]) -> dict[int, int]:
    """Leave out steps most of whose neighbours are slow, too: other load on the host makes them
    so, as of five steps in a row no more than two are a third or a fifth one."""
    among = set(outliers(took, most=_BURSTS))
    steps = list(took)
    near = ({*steps[max(0, at - _NEAR) : at + _NEAR + 1]} for at in range(len(steps)))
    return {step: took[step] for step, of in zip(steps, near, strict=True)
            if len(of & among) <= _NEAR}  # fmt: skip


def outliers(took: Mapping[int, int], most: float = RARE) -> list[int]:
    """Return steps clearly longer than usual; none where more than ``most`` of them are."""
    if len(took) < 3 * AGAIN:
        return []
    usual, short = np.percentile(list(took.values()), (50, 10))
    more = max(SLOW * usual, SLOW_NS, SPREAD * (usual - short))
    slow = [step for step, ns in took.items() if ns >= usual + more]
    return slow if len(slow) <= most * len(took) + 1 else []


def period(slow: Sequence[int], steps: Sequence[int], least: int = AGAIN) -> int | None:
    """Return k >= 3 if every k-th of the steps, at least ``least``, is slow and hardly any other;
    else None."""
    among = set(slow)
    for k, _ in Counter(b - a for a, b in pairwise(slow)).most_common(2):
        if k < 3:
            continue
        phase, hits = Counter(step % k for step in slow).most_common(1)[0]
        due = [step for step in steps if step % k == phase]
        hits = sum(step in among for step in due)
        if hits >= least and hits >= REGULAR * max(len(due), len(slow)):
            return k
    return None


def _cause(view: View, spans: Steps, step: int, usual: Sequence[int]) -> _Cause:
    """Return the cause of a slow step: its slow ranks, and where its additional time went."""
    beside = sorted(usual, key=lambda other: abs(other - step))[:_LOOKED_AT]
    more = spans[step][1] - spans[step][0] - median(spans[s][1] - spans[s][0] for s in beside)
    late = {rank: by for rank, by in _late(view, step).items() if by >= more / 2}
    ranks = tuple(sorted(late))
    if len(ranks) * 2 > len(view.ranks):
        ranks = ()
    op = _large_op(view, step, beside)
    if op and not ranks:
        return _Cause((), op, round(more), large=True)
    whom = ranks or tuple(view.ranks)[:MOST_RANKS]
    spent: dict[str, list[float]] = defaultdict(list)
    for rank in whom:
        now = phases_in(view, rank, spans[step])
        before = [phases_in(view, rank, spans[other]) for other in beside]
        for name, ns in now.items():
            spent[name].append(ns - median(phases[name] for phases in before))
    name = max(spent, key=lambda phase: median(spent[phase]))
    by = round(median(spent[name]))
    call = call_in(view, (whom[0], spans[step]), (whom[0], spans[beside[0]]), by)
    named = f"in {call}" if call else ""
    computes = not named and name in COMPUTE
    return _Cause(ranks, named or _WORDS.get(name, f"in {name}"), by, computes=computes)


def _late(view: View, step: int) -> dict[int, int]:
    """Return rank -> ns after half of the ranks, at the step's most skewed collective."""
    arrived: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for rank, process in view.ranks.items():
        table, rows = view.step_rows(process, "issue", step)
        for gid, seq, t0 in table.tuples(rows, "group_id", "seq", "t0_ns"):
            if gid in process.groups:
                arrived[process.groups[gid].key, seq][rank] = t0
    worst: dict[int, int] = {}
    for times in arrived.values():
        half = sorted(times.values())[(len(times) - 1) // 2]
        if max(times.values()) - half > max(worst.values(), default=0):
            worst = {rank: t - half for rank, t in times.items()}
    return worst


def _large_op(view: View, step: int, usual: Sequence[int]) -> str:
    """Return ``in all_gather of 64 MB (at most 4 kB in other steps)``; empty without such an op."""
    for process in view.ranks.values():
        op, most = _largest(view, process.rank or 0, step)
        before = max((_largest(view, process.rank or 0, other)[1] for other in usual), default=0)
        if most >= LARGE * max(before, 1 << 16):
            return f"in {op} of {size(most)} (at most {size(before)} in other steps)"
    return ""


def _largest(view: View, rank: int, step: int) -> tuple[str, int]:
    process = view.ranks[rank]
    table, rows = view.step_rows(process, "issue", step)
    if not len(rows):
        return "", 0
    moved = np.maximum(table.col("a")[rows], table.col("b")[rows])
    at = int(moved.argmax())
    op = process.ops.get(int(table.col("name_id")[rows[at]]))
    return op.op if op is not None else "an op", int(moved[at])


def _candidate(
    view: View, looked_at: Window, spans: Steps, slow: Sequence[int], usual: Sequence[int],
    every: int | None, causes: Sequence[_Cause],
) -> Candidate:  # fmt: skip
    length, normal = (round(median(spans[s][1] - spans[s][0] for s in part))
                      for part in (slow, usual))  # fmt: skip
    late = Counter(rank for cause in causes for rank in cause.ranks)
    often = max(late.values(), default=0) / 2  # a single hiccup does not count
    culprits = tuple(sorted(rank for rank, number in late.items() if number > often))
    alone = bool(late) and sum(bool(c.ranks) for c in causes) >= REGULAR * len(causes)
    culprits = culprits if alone else ()
    by_ns = median(cause.by_ns for cause in causes)
    call, where = _seen_in(view, looked_at, culprits, by_ns * len(slow), spans)
    computes = sum(cause.computes for cause in causes) > len(causes) / 2
    if call is not None and computes and device(view.ranks[culprits[0]]):
        call = where = None  # the rank waits for its device
    newest = slow[-1]
    facts = SlowSteps(
        every=every, num_slow=len(slow), num_steps=len(spans), slow_ns=length, usual_ns=normal,
        last=tuple(slow[-4:]), by_ns=by_ns,
        what=Counter(cause.what for cause in causes).most_common(1)[0][0],
        large=all(cause.large for cause in causes), of_ranks=alone, call=call,
        same_ranks=sum({*c.ranks} >= {*culprits} for c in causes) >= REGULAR * len(causes),
    )  # fmt: skip
    rank = culprits[0] if culprits else None
    return Candidate(
        kind="slow-steps", ranks=tuple(r for r in view.ranks if r not in culprits),
        culprits=culprits, where=where, t_ns=spans[newest][0], first_ns=spans[slow[0]][0],
        facts=facts, cost_ns_per_step=round(facts.cost_ns),
        evidence=Evidence(spans[newest][0], rank, "timeline", lane="phase"),
    )  # fmt: skip


def _seen_in(
    view: View, looked_at: Window, culprits: Sequence[int], by_ns: float, spans: Steps
) -> tuple[Blocking | None, str | None]:
    """Return the call and the place that account for half of a rank's additional time in all these
    steps, as where it computes outside of phases; (None, None): neither, as of a call of all steps
    that it is seen in a little more often by chance."""
    whole_ns = sum(t1 - t0 for t0, t1 in spans.values())
    for head in (BLOCKED, BUSY) if len(culprits) == 1 else ():
        call, where, step_ns = blocked(view, looked_at, culprits, head)
        if call is not None and step_ns / looked_at.step_ns * whole_ns >= CAUSE_SHARE * by_ns:
            return call, where
    return None, None
