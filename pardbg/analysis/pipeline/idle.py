"""Idle time of a pipeline's ranks, split completely by cause."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.intervals import Interval, clip, subtract, union
from pardbg.analysis.pipeline.chains import completions
from pardbg.analysis.pipeline.dependencies import COMPUTE, parse, producer, twin
from pardbg.analysis.pipeline.values import ActionSpan, Cause, Idle
from pardbg_agent import wire


class Call(NamedTuple):
    """Host time inside a call that issues a send or a receive."""

    t0_ns: int
    t1_ns: int
    producer: str
    """Action whose output the call moves."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Observations by which one rank's idle time is split."""

    rank: int
    num_stages: int
    ended: Mapping[str, tuple[int | None, int]]
    """Action -> (end in ns, None while it runs; rank), over all ranks."""
    stage_rank: Mapping[int, int]
    waits: Sequence[Interval] = ()
    """Waits of the host for point-to-point ops, in order and disjoint."""
    receives: Mapping[tuple[str, int, int], Sequence[tuple[int, int | None]]] = field(
        default_factory=dict
    )
    """(F, B or "", stage, microbatch) -> (issued, completed or None) of labelled receives."""
    calls: Sequence[Call] = ()
    """Calls that issue sends or receives, by begin."""
    host_bound: Sequence[Interval] = ()
    """Stretches in which the device had nothing queued."""


def busy_intervals(spans: Sequence[ActionSpan], window_end: int) -> list[Interval]:
    """Return the union of the compute actions; a running one ends at the window's end."""
    return union(
        (s.t0_ns, s.t1_ns if s.t1_ns is not None else window_end)
        for s in spans
        if s.kind in COMPUTE
    )


def split(
    evidence: Evidence, spans: Sequence[ActionSpan], window: Interval, upcoming: str | None
) -> tuple[Idle, ...]:
    """Return the idle stretches of one rank in the window. busy + idle == window, exactly.

    ``upcoming``: in a step under way, the planned action after the last one that has begun.
    """
    begin, end = window
    busy = clip(busy_intervals(spans, end), begin, end)
    if not busy:
        return _plain(evidence, begin, end, "warmup")
    starts = {s.t0_ns: s.text for s in reversed(spans) if s.kind in COMPUTE}
    _, _, ready = _producer(evidence, starts.get(busy[0][0]), begin, busy[0][0], running=False)
    idles = list(_plain(evidence, begin, ready, "warmup"))
    idles += _launched_late(evidence, _plain(evidence, ready, busy[0][0], "warmup"))
    for (_, gap_begin), (gap_end, _) in pairwise(busy):
        idles += _gap(evidence, gap_begin, gap_end, starts.get(gap_end), running=False)
    tail_begin = busy[-1][1]
    if upcoming is None:
        idles += _plain(evidence, tail_begin, end, "cooldown")
    else:
        idles += _gap(evidence, tail_begin, end, upcoming, running=True)
    return tuple(idles)


def _launched_late(evidence: Evidence, idles: Iterable[Idle]) -> Iterator[Idle]:
    """Yield the idle stretches, those in which the device had nothing queued as ``launch``."""
    if not evidence.host_bound:
        yield from idles
        return
    for idle in idles:
        bound = clip(evidence.host_bound, idle.t0_ns, idle.t1_ns)
        parts = [replace(idle, t0_ns=a, t1_ns=b, cause="launch") for a, b in bound]
        rest = subtract([(idle.t0_ns, idle.t1_ns)], bound)
        parts += [replace(idle, t0_ns=a, t1_ns=b) for a, b in rest]
        yield from sorted(parts, key=lambda part: part.t0_ns)


def _plain(evidence: Evidence, begin: int, end: int, cause: Cause) -> tuple[Idle, ...]:
    if end <= begin:
        return ()
    return (Idle(evidence.rank, begin, end, cause, None, None),)


def _gap(evidence: Evidence, begin: int, end: int, action: str | None, running: bool) -> list[Idle]:
    """Split a gap before ``action``: dependency, then communication where observed, else host."""
    if end <= begin:
        return []
    name, rank, ready = _producer(evidence, action, begin, end, running)
    idles = []
    if ready > begin:
        idles.append(Idle(evidence.rank, begin, ready, "dependency", name, rank))
    if ready >= end:
        return idles
    under_way = [*_waits(evidence, ready, end), *_receiving(evidence, action, end)]
    moving = union(clip(under_way, ready, end))
    for a, b in moving:
        idles.append(Idle(evidence.rank, a, b, "communication", name, rank))
    for a, b in subtract([(ready, end)], moving):
        for idle in _calling(evidence, a, b):
            idles += _launched_late(evidence, [idle]) if idle.cause == "host" else [idle]
    return sorted(idles, key=lambda idle: idle.t0_ns)


def _calling(evidence: Evidence, begin: int, end: int) -> list[Idle]:
    """Split a stretch without a wait: communication inside a call that sends a tensor, or receives
    one that exists by then; host elsewhere.

    A receive posted before its tensor exists waits for nothing, so its call is the host's time.
    """
    idles = []
    at = begin
    for call in evidence.calls:
        if call.t0_ns >= end:
            break
        if call.t1_ns <= at:
            continue
        source = _either(evidence, call.producer)
        ended, source_rank = evidence.ended.get(source, (None, None))
        if ended is None:
            continue
        t0, t1 = max(call.t0_ns, at, ended), min(call.t1_ns, end)
        if t1 <= t0:
            continue
        if t0 > at:
            idles.append(Idle(evidence.rank, at, t0, "host", None, None))
        idles.append(Idle(evidence.rank, t0, t1, "communication", source, source_rank))
        at = t1
    if end > at:
        idles.append(Idle(evidence.rank, at, end, "host", None, None))
    return idles


def _producer(
    evidence: Evidence, action: str | None, begin: int, end: int, running: bool
) -> tuple[str | None, int | None, int]:
    """Return (producer of the action's input, its rank, its end within the gap in ns).

    A rank never waits for a producer of its own: then it was idle for another reason.
    """
    needed = producer(action, evidence.num_stages) if action is not None else None
    if needed is None:
        return None, None, begin
    needed = _either(evidence, needed)
    known = evidence.ended.get(needed)
    if known is None:
        parsed = parse(needed)
        rank = evidence.stage_rank.get(parsed.stage) if parsed is not None else None
        if rank is None or rank == evidence.rank:
            return None, None, begin
        # The producer has not begun if the action still waits; else its record was lost.
        return needed, rank, end if running else begin
    done, rank = known
    if rank == evidence.rank:
        return None, None, begin
    return needed, rank, end if done is None else min(max(done, begin), end)


def _either(evidence: Evidence, action: str) -> str:
    """Return the form of an action that has run: an I gives the same gradient as a B."""
    other = twin(action)
    if other is None or action in evidence.ended or other not in evidence.ended:
        return action
    return other


def _waits(evidence: Evidence, begin: int, end: int) -> Sequence[Interval]:
    """Return the waits that touch [begin, end]."""
    lo = bisect_left(evidence.waits, begin, key=lambda wait: wait[1])
    hi = bisect_left(evidence.waits, end, key=lambda wait: wait[0])
    return evidence.waits[lo:hi]


def _receiving(evidence: Evidence, action: str | None, end: int) -> list[Interval]:
    """Return the stretch in which the receive of the action's input was under way; or empty."""
    parsed = parse(action) if action is not None else None
    if parsed is None:
        return []
    label = "F" if parsed.kind == "F" else "B"
    keys = ((of, parsed.stage, parsed.microbatch) for of in (label, ""))
    fitting = [r for key in keys for r in evidence.receives.get(key, ()) if r[0] <= end]
    if not fitting:
        return []
    issued, done = max(fitting, key=lambda r: r[0])  # unlabelled: a B's is posted after its F's
    return [(issued, end if done is None else done)]


Receives = dict[tuple[str, int, int], list[tuple[int, int | None]]]
"""(F, B or "" for an unlabelled op, stage, microbatch) -> (issued, completed or None), in ns"""


def receives(view: View, rank: int, step: int) -> Receives:
    """Return the receives of a step that have a pipeline's label."""
    process = view.ranks.get(rank)
    if process is None:
        return {}
    table, rows = view.step_rows(process, "issue_p2p", step)
    recv = (table.col("flags")[rows] & int(wire.Flag.SEND)) == 0
    rows = rows[recv & (table.col("microbatch")[rows] >= 0)]
    if not len(rows):
        return {}
    done = completions(view, process, step)
    columns = ("name_id", "stage", "microbatch", "t0_ns", "group_id", "seq")
    found: Receives = {}
    for name, stage, mb, t0, group, seq in table.tuples(rows, *columns):
        op = process.ops.get(name)
        label = op.reduce if op is not None else ""
        found.setdefault((label, stage, mb), []).append((t0, done.get((group, seq))))
    return found


def calls(view: View, rank: int, step: int, num_stages: int) -> list[Call]:
    """Return the calls of a step that issue a labelled send or receive, by begin."""
    process = view.ranks.get(rank)
    if process is None:
        return []
    table, rows = view.step_rows(process, "issue_p2p", step)
    rows = rows[table.col("microbatch")[rows] >= 0]
    names = ("name_id", "stage", "microbatch", "t0_ns", "t1_ns", "flags")
    made = []
    for name, stage, mb, t0, t1, flags in table.tuples(rows, *names):
        op = process.ops.get(name)
        label = op.reduce if op is not None else ""
        # A send's tensor is made by the action of its own label, a receive's by the one before.
        own = f"{stage}{label}{mb}"
        source = own if flags & int(wire.Flag.SEND) else producer(own, num_stages)
        if label and source is not None:
            made.append(Call(t0, t1, source))
    return sorted(made)
