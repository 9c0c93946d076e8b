"""Differences between a rank's collectives and the others': left out, added, swapped.

Each rank ran to its end, so its ops are known also after the point where it would be stuck: a
group's ops on one rank are compared with those of most ranks. A live job cannot do that: it sees
the first op that does not fit, which may come much later.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pardbg.analysis.hangs.stacks import place
from pardbg.lab.rehearse.order import Member, members
from pardbg.lab.rehearse.rank_trace import Frame, Trace
from pardbg.words import size

AHEAD: Final = 8
"""Number of ops after a difference that must be equal to the others'."""
_OF_COLLECTIVE: Final = ("op-mismatch", "root-mismatch", "size-mismatch", "dtype-mismatch")
_OF_MESSAGE: Final = ("op-mismatch", "wrong-peer", "p2p-size-mismatch", "p2p-tag-mismatch")
_PARTS: Final = {kind: kind.split("-")[-2] for kind in (*_OF_COLLECTIVE, *_OF_MESSAGE)}


What = tuple[str, int | None, int, int | str]


class Call(NamedTuple):
    """A collective, or one side of a message, as one rank issues it."""

    what: What
    """Op, root or distance of the peer, size, dtype or tag: equal on ranks that do the same."""
    group: str
    """Key of the group; empty: a message."""
    label: str
    seq: int
    place: str
    bytes: int
    ranks: tuple[int, ...] = ()
    """Ranks of the call's group."""
    role: str = ""
    """Role of the group, equal on all ranks: its axis, else its size."""

    def __str__(self) -> str:
        number = f" #{self.seq}" if self.group else ""
        return f"{self.what[0]} {self.label}{number} ({size(self.bytes)})"


Calls = Sequence[Call]


class Difference(NamedTuple):
    """Deviation of one rank. Kinds are those of findings."""

    kind: str
    rank: int
    call: Call
    text: str


def differences(traces: Iterable[Trace]) -> list[Difference]:
    """Return each rank's first difference in each group; a call on a wrong group is one."""
    by_rank = {trace.rank: _calls(trace) for trace in traces if not trace.code}
    groups: dict[str, dict[int, Calls]] = defaultdict(dict)
    for rank, calls in by_rank.items():
        mine: dict[str, list[Call]] = defaultdict(list)
        for call in calls:
            mine[call.group].append(call)
        for key, of_group in mine.items():
            groups[key][rank] = of_group
    messages = groups.pop("", {})
    votes = Counter(_whats(calls) for by in groups.values() for calls in by.values())
    found = [one for by in groups.values() for one in _in_group(by, votes)]
    if wrong := list(_wrong_groups(found)):
        return wrong
    collectives = {r: [c for c in calls if c.group] for r, calls in by_rank.items()}
    return list(_orders(collectives)) or list(_messages(messages))


def _calls(trace: Trace) -> Calls:
    stacks = trace.stacks()
    return [
        _call(one, trace, stacks[number] if number < len(stacks) else ())
        for number, one in enumerate(members(trace))
    ]


def _call(one: Member, trace: Trace, stack: Sequence[Frame]) -> Call:
    group, at = trace.groups.get(one.group_id), place(stack) or "?"
    ranks = group.ranks if group is not None else ()
    what: What
    if one.peer is not None:
        far = one.peer - trace.rank
        if one.peer in ranks and trace.rank in ranks:
            far = (ranks.index(one.peer) - ranks.index(trace.rank)) % len(ranks)
        label = f"{'from' if one.op.op == 'recv' else 'to'} rank {one.peer}"
        what = one.op.op, far, one.bytes, one.op.tag
        return Call(what, "", label, one.seq, at, one.bytes, ranks)
    of_ranks = f"of {len(ranks)} ranks"
    label = (group.axis or group.name or of_ranks) if group is not None else of_ranks
    role = label if label == "default" else (group and group.axis) or of_ranks
    mine = one.signature
    given = 0 if mine.shares else mine.size  # shares of an all_gather may differ
    what = mine.op, mine.root, given, mine.dtype
    key = group.key if group is not None else ""
    return Call(what, key, label, one.seq, at, one.bytes, ranks, role)


def _whats(calls: Calls) -> tuple[tuple[Any, ...], ...]:
    return tuple(call.what for call in calls)


def _in_group(by: Mapping[int, Calls], votes: Counter[Any]) -> Iterator[Difference]:
    """Yield differences of a group's ranks from most; of two halves, from most other groups."""
    own = Counter(map(_whats, by.values()))
    if len(own) < 2:
        return
    (best, *others) = sorted(own, key=lambda whats: (own[whats], votes[whats]), reverse=True)
    if (own[best], votes[best]) == (own[others[0]], votes[others[0]]):
        return  # either side may be wrong
    usual = next(calls for calls in by.values() if _whats(calls) == best)
    halves = own[best] == own[others[0]]  # of others, the mismatch names the ranks
    for rank, calls in by.items():
        one = None if _whats(calls) == best else _compared(rank, calls, usual)
        if one is not None and (halves or not one.kind.endswith("mismatch")):
            yield one


def _messages(by: Mapping[int, Calls]) -> Iterator[Difference]:
    """Yield ranks whose messages are nearly those of several equal other ranks; peers are compared
    by distance in the group. Ends of a pipeline have unique messages, so they match no others.
    """
    votes = Counter(map(_whats, by.values()))
    usual = {_whats(calls): calls for calls in by.values()}
    for rank, calls in by.items():
        own = _whats(calls)
        like = (whats for whats, number in votes.most_common()
                if number > max(votes[own], 1) and whats[:1] == own[:1])  # fmt: skip
        made = (_compared(rank, calls, usual[whats]) for whats in like)
        yield from filter(None, [next(filter(None, made), None)])


def _compared(rank: int, mine: Calls, usual: Calls) -> Difference | None:
    """Return the difference of one rank from ``usual``, if there is a single one."""
    at = next((i for i, (a, b) in enumerate(zip(mine, usual, strict=False)) if a.what != b.what),
              min(len(mine), len(usual)))  # fmt: skip
    if at < len(usual) and _alike(mine[at:], usual[at + 1 :]):
        at = _moved(mine, usual, at)
        call = _of_rank(rank, usual[at], mine)
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
    if swapped:
        return _order(rank, mine[at], mine[at + 1])
    if at < min(len(mine), len(usual)) and _alike(mine[at + 1 :], usual[at + 1 :]):
        return _other_call(rank, mine[at], usual[at])
    return None


def _of_rank(rank: int, call: Call, mine: Calls) -> Call:
    """Return another rank's message as this rank would issue it."""
    ranks = next((one.ranks for one in mine), ())
    if call.group or rank not in ranks or len(ranks) != len(call.ranks):
        return call
    peer = ranks[(ranks.index(rank) + (call.what[1] or 0)) % len(ranks)]
    return call._replace(label=f"{call.label.partition(' ')[0]} rank {peer}")


def _other_call(rank: int, mine: Call, usual: Call) -> Difference:
    part = next(i for i, (a, b) in enumerate(zip(mine.what, usual.what, strict=True)) if a != b)
    kinds = _OF_COLLECTIVE if mine.group else _OF_MESSAGE
    if kinds[part] == "wrong-peer":
        text = f"{mine} at {mine.place}: not the peer that the others take there"
    elif part < 2:
        text = f"{mine} at {mine.place} where the others issue {usual}"
    else:
        text = (f"{mine} at {mine.place} with {_PARTS[kinds[part]]} {mine.what[part]}, the others"
                f" with {usual.what[part]}")  # fmt: skip
    text = f"rank {rank} issues {text}"
    return Difference(kinds[part], rank, mine, text)


def _alike(one: Calls, other: Calls) -> bool:
    """Return whether both continue equally: for AHEAD calls, or to their ends."""
    return _whats(one[:AHEAD]) == _whats(other[:AHEAD])


def _moved(short: Calls, long: Calls, at: int) -> int:
    """Return which of equal calls in a row is only in ``long``: the first with another place."""
    for first in range(at):
        if short[first].place != long[first].place:
            same = _whats(short[first:at]) == _whats(long[first + 1 : at + 1])
            return first if same else at
    return at


def _wrong_groups(found: Sequence[Difference]) -> Iterator[Difference]:
    """Yield calls on the wrong group: left out in one group and added in another."""
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
    """Yield ranks that issue the same calls, over all groups, in another order than most ranks."""
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
    return call.role, call.what


def _order(rank: int, one: Call, then: Call) -> Difference:
    return Difference("op-order", rank, one, f"rank {rank} issues {one} at {one.place} before"
                      f" {then} at {then.place}; the others do it the other way round")  # fmt: skip
