"""Pipelines that a program runs with sends and receives of its own, recognized by their messages.

Such a pipeline has no plan and no stage. Each rank has backward phases, with messages before and
after them. Ranks are a pipeline if their messages form a line that each microbatch passes: its k-th
message down the line arrives before the k-th backward of the receiver; its k-th message back is
sent after the sender's k-th backward and arrives before the receiver's. Rings (ring attention, a
ring all-reduce), parameter servers and interleaved stages do not do that.

A forward is the time between the arrival of its input and the send of its output, without waits.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pardbg import words
from pardbg.analysis.base.asof import View, per_store, per_view
from pardbg.analysis.base.intervals import Interval, subtract, union
from pardbg.analysis.base.times import times
from pardbg.analysis.pipeline.values import ActionSpan
from pardbg.store.process import Process
from pardbg_agent import wire

_SEND = int(wire.Flag.SEND)
_P2P = int(wire.Flag.P2P)
_EDGES = ("backward", "data", "optimizer")
"""Phases that are no forward; an inferred one lies around all others."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Ranks of a pipeline without a schedule, in the order in which a microbatch passes them."""

    ranks: tuple[int, ...]
    num_microbatches: int


@dataclass(slots=True)
class _Seen:
    """Messages and phases of one rank in one step."""

    sends: dict[int, list[Interval]] = field(default_factory=lambda: defaultdict(list))
    """Peer -> issues of sends, in order."""
    receives: dict[int, list[Interval]] = field(default_factory=lambda: defaultdict(list))
    """Peer -> (time of posting, time of arrival and wait), in order of posting."""
    backward: list[Interval] = field(default_factory=list)
    begin: int = 0
    """Time of the first record of the step, or the end of the step before, in ns."""
    cuts: list[Interval] = field(default_factory=list)
    """Messages, waits and other phases, no compute of a forward; in order and disjoint."""


def chains(view: View) -> tuple[Chain, ...]:
    """Return the run's pipelines without a schedule object; empty if there are none."""
    return _found(view)[0]


def why_none(view: View) -> str:
    """Return why ranks that pass messages are not a pipeline; empty if no ranks do."""
    return _found(view)[1]


@per_view
def _found(view: View) -> tuple[tuple[Chain, ...], str]:
    cache = view.memo("chains")
    key = (view.epoch, tuple(view.ranks))
    known: tuple[int, tuple[Chain, ...]] | None = cache.get(key)
    if known is not None and known[0] <= view.t_ns:  # seen by then: an earlier cursor looks again
        return known[1], ""
    if not view.joined("issue_p2p").sizes.any():
        return (), ""
    ended = [n for process in view.ranks.values() if (n := _last_step(view, process)) >= 0]
    if not ended:
        return (), ""
    found, why = _chains_of(view, min(ended))
    if found:
        cache[key] = (view.t_ns, found)
    return found, why


def _last_step(view: View, process: Process) -> int:
    table, visible = view.rows(process, "step")
    return int(table.col("step")[visible - 1]) if visible else -1


@per_store(lambda view, step: (view.epoch, tuple(view.ranks), step))
def _chains_of(view: View, step: int) -> tuple[tuple[Chain, ...], str]:
    seen = {rank: _see(view, process, step) for rank, process in view.ranks.items()}
    found, why = [], ""
    for ranks in _connected(seen):
        order, reason = _order(seen, ranks)
        if order:
            found.append(Chain(order, len(seen[order[0]].backward)))
        else:
            why = why or reason
    return tuple(sorted(found, key=lambda chain: min(chain.ranks))), why


# -- what a rank did


def _see(view: View, process: Process, step: int) -> _Seen:
    seen = _Seen()
    waited = _waits(view, process, step)
    table, rows = view.step_rows(process, "issue_p2p", step)
    columns = ("peer", "flags", "t0_ns", "t1_ns", "group_id", "seq")
    done = completions(view, process, step)
    cuts: list[Interval] = list(waited.values())
    for peer, flags, t0, t1, group, seq in table.tuples(rows, *columns):
        cuts.append((t0, t1))
        if flags & _SEND:
            seen.sends[peer].append((t0, t1))
        else:
            there = waited.get((group, seq), (0, done.get((group, seq), 0)))[1]
            seen.receives[peer].append((t0, there))
    first = [t0 for t0, _ in cuts]
    table, rows = view.step_rows(process, "phase", step)
    for name_id, t0, t1 in table.tuples(rows, "name_id", "t0_ns", "t1_ns"):
        name = process.name(name_id)
        first.append(t0)
        if name in _EDGES:
            cuts.append((t0, t1))
        if name == "backward":
            seen.backward.append((t0, t1))
    seen.backward.sort()
    seen.begin = min(first, default=0)
    if not len(rows):  # phases are seen at their end: the first forward may be under way
        seen.begin = _ended_ns(view, process, step - 1) or seen.begin
    seen.cuts = union(cuts)
    return seen


def _ended_ns(view: View, process: Process, step: int) -> int:
    """Return when a step ended, in ns; 0 if its end was not recorded."""
    table, rows = view.step_rows(process, "step", step)
    return int(table.col("t1_ns")[rows[-1]]) if len(rows) else 0


def _waits(view: View, process: Process, step: int) -> dict[tuple[int, int], Interval]:
    """(group id, seq) -> the wait for a p2p op of the step. The host's says nothing about a device:
    none, where times are the device's."""
    if times(view) == "device":
        return {}
    table, rows = view.step_rows(process, "wait", step)
    rows = rows[(table.col("flags")[rows] & _P2P) != 0]
    waits = table.tuples(rows, "group_id", "seq", "t0_ns", "t1_ns")
    return {(group, seq): (t0, t1) for group, seq, t0, t1 in waits}


def completions(view: View, process: Process, step: int) -> dict[tuple[int, int], int]:
    """Return (group id, seq) -> completion of point-to-point ops issued in a step, in ns."""
    table, rows = view.step_rows(process, "done_p2p", step)
    return {(group, seq): t1 for group, seq, t1 in table.tuples(rows, "group_id", "seq", "t1_ns")}


# -- is it a pipeline


def _connected(seen: Mapping[int, _Seen]) -> list[list[int]]:
    """Return the groups of ranks that pass messages to each other."""
    left = {rank for rank, one in seen.items() if one.sends or one.receives}
    groups = []
    while left:
        group, ahead = set(), [min(left)]
        while ahead:
            rank = ahead.pop()
            if rank in group or rank not in left:
                continue
            group.add(rank)
            ahead += [*seen[rank].sends, *seen[rank].receives]
        left -= group
        groups.append(sorted(group))
    return groups


def _order(seen: Mapping[int, _Seen], ranks: Sequence[int]) -> tuple[tuple[int, ...], str]:
    """Return (line that the ranks form, why they are no pipeline); one of the two is empty."""
    said = words.ranks_text(ranks)
    counts = {len(seen[rank].backward) for rank in ranks}
    if 0 in counts:
        return (), f"{said} pass messages, but not all of them run backward"
    if len(counts) > 1:
        return (), f"{said} pass messages, but run backward a different number of times"
    line = _line(seen, ranks)
    if len(ranks) < 2 or not line:
        return (), f"{said} pass messages in a ring or a web, not in a line"
    for order in (line, line[::-1]):
        if all(_passes(seen[a], seen[b], a, b) for a, b in pairwise(order)):
            return tuple(order), ""
    return (), f"{said} pass messages, but not one after each forward and one after each backward"


def _line(seen: Mapping[int, _Seen], ranks: Sequence[int]) -> list[int]:
    beside = {rank: {*seen[rank].sends, *seen[rank].receives} - {rank} for rank in ranks}
    ends = [rank for rank in ranks if len(beside[rank]) == 1]
    if len(ends) != 2 or any(len(peers) > 2 for peers in beside.values()):
        return []
    order = [ends[0]]
    while len(order) < len(ranks):
        following = beside[order[-1]].difference(order)
        if not following:
            return []
        order.append(following.pop())
    return order


def _passes(before: _Seen, behind: _Seen, a: int, b: int) -> bool:
    """Return whether each microbatch reaches b before b's backward, its gradient a after it."""
    number = len(before.backward)
    there = _each(behind.receives.get(a, []), number)
    back, sent = _each(before.receives.get(b, []), number), _each(behind.sends.get(a, []), number)
    if not there or not back or not sent or len(before.sends.get(b, [])) % number:
        return False
    return all(
        0 < there[k][-1][1] <= behind.backward[k][0]
        and sent[k][0][0] >= behind.backward[k][1]
        and 0 < back[k][-1][1] <= before.backward[k][0]
        for k in range(number)
    )


def _each(messages: Sequence[Interval], number: int) -> list[Sequence[Interval]]:
    """Return the messages of each microbatch; empty if their number is no multiple."""
    if not number or not messages or len(messages) % number:
        return []
    size = len(messages) // number
    return [messages[at : at + size] for at in range(0, len(messages), size)]


# -- its actions


def chain_spans(view: View, chain: Chain, rank: int, step: int) -> list[ActionSpan]:
    """Return the rank's ended forwards and backwards, by begin; the k-th is microbatch k."""
    process = view.ranks.get(rank)
    if process is None:
        return []
    seen, stage = _see(view, process, step), chain.ranks.index(rank)
    made = [ActionSpan(rank, stage, "B", mb, t0, t1) for mb, (t0, t1) in enumerate(seen.backward)]
    made += [
        ActionSpan(rank, stage, "F", mb, t0, t1) for mb, (t0, t1) in _forwards(seen, chain, stage)
    ]
    return sorted(made, key=lambda span: span.t0_ns)


def _forwards(seen: _Seen, chain: Chain, stage: int) -> list[tuple[int, Interval]]:
    """Return (microbatch, interval) of forwards whose begin and end were seen; a run's very first
    forward has no known begin, as nothing came before it."""
    last = stage == len(chain.ranks) - 1
    sends = [] if last else seen.sends.get(chain.ranks[stage + 1], [])
    if stage == 0:
        size = max(1, _size(seen, sends, chain))
        starts = (_before(seen, sends[at][0]) for at in range(0, len(sends), size))
        return [(mb, (t0, t1)) for mb, (t0, t1) in enumerate(starts) if t0 < t1]
    receives = seen.receives.get(chain.ranks[stage - 1], [])
    size = max(1, _size(seen, receives, chain))
    made = []
    for mb, at in enumerate(range(size - 1, len(receives), size)):
        there = receives[at][1]
        end = _next(sends, there) if not last else min(
            _next(seen.backward, there), _next(receives, there))  # fmt: skip
        if there and end > there and end < _NEVER:
            gaps = subtract([(there, end)], seen.cuts)
            made.append((mb, max(gaps, key=lambda gap: gap[1] - gap[0], default=(there, end))))
    return made


_NEVER = 1 << 62


def _size(seen: _Seen, messages: Sequence[Interval], chain: Chain) -> int:
    """Return the number of messages of one microbatch."""
    return len(messages) // chain.num_microbatches if len(seen.backward) else 1


def _next(spans: Sequence[Interval], t_ns: int) -> int:
    """Return the begin of the first span at or after a time, in ns."""
    at = bisect_left(spans, t_ns, key=lambda span: span[0])
    return spans[at][0] if at < len(spans) else _NEVER


def _before(seen: _Seen, t_ns: int) -> Interval:
    """Return the interval from the end of the preceding activity to the send of an output."""
    at = bisect_right(seen.cuts, t_ns - 1, key=lambda cut: cut[0])
    begin = seen.cuts[at - 1][1] if at else seen.begin
    return min(begin, t_ns), t_ns
