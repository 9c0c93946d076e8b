"""Where a rank's collectives are not in the order of the others: left out, put in, swapped.

Each rank ran to its end, so its ops are known also behind the place where it would be stuck: a
group's ops, as one rank issues them, are laid beside those of most. A live job cannot do that: it
sees the first op that does not fit, which may come much later.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pardbg.analysis.hangs.stacks import place
from pardbg.rehearse.order import Member, members
from pardbg.rehearse.rank_trace import Trace
from pardbg.words import size

AHEAD: Final = 8
"""Ops behind the one in question that must be as with the others."""


class Call(NamedTuple):
    """A collective as one rank issues it."""

    what: tuple[Any, ...]
    group: str
    """Key."""
    label: str
    seq: int
    place: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.what[0]} {self.label} #{self.seq} ({size(self.bytes)})"


Calls = Sequence[Call]


class Difference(NamedTuple):
    """What one rank does otherwise. Kinds are those of findings."""

    kind: str
    rank: int
    call: Call
    text: str


def differences(traces: Iterable[Trace]) -> list[Difference]:
    """The first one of each rank in each group; a call on a wrong group is one."""
    by_rank = {trace.rank: _calls(trace) for trace in traces if not trace.code}
    groups: dict[str, dict[int, Calls]] = defaultdict(dict)
    for rank, calls in by_rank.items():
        mine: dict[str, list[Call]] = defaultdict(list)
        for call in calls:
            mine[call.group].append(call)
        for key, of_group in mine.items():
            groups[key][rank] = of_group
    votes = Counter(_whats(calls) for by in groups.values() for calls in by.values())
    found = [one for by in groups.values() for one in _in_group(by, votes)]
    return list(_wrong_groups(found)) or list(_orders(by_rank))


def _calls(trace: Trace) -> Calls:
    stacks, keys = trace.stacks(), {n: said["key"] for n, said in trace.groups.items()}
    found = []
    for number, one in enumerate(members(trace)):
        if one is not None:
            found.append(_call(one, trace, keys, stacks[number] if number < len(stacks) else ()))
    return found


def _call(one: Member, trace: Trace, keys: Mapping[int, str], stack: Sequence[Any]) -> Call:
    group = trace.groups.get(one.group_id, {})
    label = group.get("axis") or group.get("name") or f"of {len(group.get('ranks', ()))} ranks"
    name, root, given, _, out = one.what
    what = name, root, 0 if out else given  # shares of an all_gather may differ
    return Call(what, keys.get(one.group_id, ""), label, one.seq, place(stack) or "?", one.bytes)


def _whats(calls: Calls) -> tuple[tuple[Any, ...], ...]:
    return tuple(call.what for call in calls)


def _in_group(by: Mapping[int, Calls], votes: Counter[Any]) -> Iterator[Difference]:
    """Ranks of a group that differ from most; half against half, from most other groups."""
    own = Counter(map(_whats, by.values()))
    if len(own) < 2:
        return
    (best, *others) = sorted(own, key=lambda whats: (own[whats], votes[whats]), reverse=True)
    if (own[best], votes[best]) == (own[others[0]], votes[others[0]]):
        return  # nobody can tell which side is wrong
    usual = next(calls for calls in by.values() if _whats(calls) == best)
    for rank, calls in by.items():
        if _whats(calls) != best and (one := _compared(rank, calls, usual)) is not None:
            yield one


def _compared(rank: int, mine: Calls, usual: Calls) -> Difference | None:
    at = next((i for i, (a, b) in enumerate(zip(mine, usual, strict=False)) if a.what != b.what),
              min(len(mine), len(usual)))  # fmt: skip
    if at < len(usual) and _alike(mine[at:], usual[at + 1 :]):
        at = _moved(mine, usual, at)
        call = usual[at]
        behind = f"; its next one there is {mine[at]} at {mine[at].place}" if mine[at:] else ""
        return Difference("skipped-op", rank, call, f"rank {rank} leaves out {call}, which the"
                          f" others issue at {call.place}{behind}")  # fmt: skip
    if at < len(mine) and _alike(mine[at + 1 :], usual[at:]):
        call = mine[_moved(usual, mine, at)]
        text = f"rank {rank} issues {call} at {call.place}, which the others do not"
        return Difference("extra-op", rank, call, text)
    swapped = at + 1 < min(len(mine), len(usual)) and (
        _whats(mine[at : at + 2]) == _whats(usual[at : at + 2])[::-1]
    )
    return _order(rank, mine[at], mine[at + 1]) if swapped else None


def _alike(one: Calls, other: Calls) -> bool:
    """Both go on the same: to their ends, if those are near."""
    return _whats(one[:AHEAD]) == _whats(other[:AHEAD])


def _moved(short: Calls, long: Calls, at: int) -> int:
    """Of equal calls in a row, the one that is only in ``long``: where places begin to differ."""
    for first in range(at):
        if short[first].place != long[first].place:
            same = _whats(short[first:at]) == _whats(long[first + 1 : at + 1])
            return first if same else at
    return at


def _wrong_groups(found: Sequence[Difference]) -> Iterator[Difference]:
    """A call left out in one group and put in in another is one on the wrong group."""
    extra = {(one.rank, one.call.what[0]): one for one in found if one.kind == "extra-op"}
    told: set[Difference] = set()
    for one in found:
        other = extra.get((one.rank, one.call.what[0]))
        if one.kind == "skipped-op" and other is not None and other not in told:
            told |= {one, other}
            text = (f"rank {one.rank} issues {other.call} at {other.call.place} where the others"
                    f" issue {one.call} at {one.call.place}")  # fmt: skip
            yield Difference("wrong-group", one.rank, other.call, text)
    yield from (one for one in found if one not in told)


def _orders(by_rank: Mapping[int, Calls]) -> Iterator[Difference]:
    """Ranks that issue what others do, over all groups, in another order than most of them."""
    alike: dict[frozenset[Any], dict[int, Calls]] = defaultdict(dict)
    for rank, calls in by_rank.items():
        alike[frozenset(Counter(map(_labelled, calls)).items())][rank] = calls
    for by in alike.values():
        own = Counter(tuple(map(_labelled, calls)) for calls in by.values())
        (usual, most), *others = own.most_common(2)
        for rank, calls in by.items() if others and most > others[0][1] else ():
            mine = tuple(map(_labelled, calls))
            if mine != usual:
                at = next(i for i, (a, b) in enumerate(zip(mine, usual, strict=True)) if a != b)
                then = next((i for i in range(at, len(mine)) if mine[i] == usual[at]), at)
                yield _order(rank, calls[at], calls[then])


def _labelled(call: Call) -> tuple[Any, ...]:
    return call.label, call.what


def _order(rank: int, one: Call, then: Call) -> Difference:
    return Difference("op-order", rank, one, f"rank {rank} issues {one} at {one.place} before"
                      f" {then} at {then.place}; the others do it the other way round")  # fmt: skip
