"""Conclusions of a log, made exact by Flight Recorder dumps of the same job.

A log has the ranks that waited; a dump also has the ops of a rank that did not come, their sizes
and the places that issued them. If the two contradict each other the log's conclusion is kept, and
the contradiction is reported: a dump may be of another moment, or of another attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from pardbg.events.rank_dumps import GroupDump, RankDump
from pardbg.joblog import events
from pardbg.joblog.conclusion import Conclusion, Facts, odd, signature
from pardbg.joblog.events import Event

WAITS: Final = frozenset(
    {"missing-rank", "mismatch", "absent-ranks", "different-ops", "stuck-op"}
)  # fmt: skip
"""Kinds of conclusions about an op that did not end."""
UNNUMBERED: Final = frozenset({"", "SEND", "RECV", "RECVANYSOURCE", "COALESCED"})
"""Ops that are numbered separately, or that no dump has under this name."""


def usable(
    found: Sequence[Event], dumps: Sequence[RankDump]
) -> tuple[list[RankDump], list[Conclusion]]:
    """Return the dumps, and a conclusion for each dump that does not fit the log: it lacks an op
    that timed out by the log, or has another op under its number. Then no dump is usable."""
    timeouts = [
        one for one in found
        if isinstance(one, events.OpTimeout) and one.seq is not None and one.op not in UNNUMBERED
    ]  # fmt: skip
    notes = [_unfit(one) for one in dumps if any(_unlike(late, one) for late in timeouts)]
    return ([] if notes else list(dumps)), notes


def _unlike(late: events.OpTimeout, dump: RankDump) -> bool:
    if late.rank != dump.rank or late.seq is None:
        return False
    known = [group.ops.get(late.seq) for group in dump.groups if group.last >= late.seq]
    ops = [one for one in known if one is not None]
    return not known or (len(ops) == len(known) and not any(_same(late.op, one.op) for one in ops))


def _same(logged: str, dumped: str) -> bool:
    """Compare an op's names: ``_ALLGATHER_BASE`` in a log is ``_all_gather_base`` in a dump."""
    one, other = (name.lower().replace("_", "").removesuffix("base") for name in (logged, dumped))
    return one.startswith(other) or other.startswith(one)


def _unfit(dump: RankDump) -> Conclusion:
    last = max((group.last for group in dump.groups), default=0)
    facts: Facts = (("file", dump.file), ("last", last))
    return Conclusion("dump-unfit", (), (dump.rank,), facts=facts)


def joined(one: Conclusion, dumps: Sequence[RankDump]) -> list[Conclusion]:
    """Return the conclusion with facts from the dumps; a second one if they contradict it."""
    groups = _of_group(one.group, dumps)
    seq = one.seq if one.seq is not None else _waited_in(one, groups)
    if one.kind not in WAITS or seq is None or one.op in UNNUMBERED - {""} or not groups:
        return [one]
    exact = replace(_exact(one, seq, groups), seq=seq)
    if one.kind == "mismatch" and (exact.kind != "mismatch" or not exact.culprits):
        return [one]
    denied = _denied(one, exact, groups)
    if not denied:
        return [exact]
    facts: Facts = (("last", max(group.last for group in groups.values())),)
    return [one, Conclusion("dump-disagrees", (), denied, one.group, seq, one.op, facts)]


def _denied(
    one: Conclusion, exact: Conclusion, groups: Mapping[int, GroupDump]
) -> tuple[int, ...]:  # fmt: skip
    """Return the ranks for which the dumps contradict the log's conclusion."""
    if one.kind == "mismatch":
        return one.culprits if exact.culprits != one.culprits else ()
    if one.kind != "missing-rank" or exact.kind == "mismatch" or exact.seq is None:
        return ()
    here = (rank for rank in one.culprits if rank in groups)
    return tuple(rank for rank in here if groups[rank].last >= exact.seq)


def _waited_in(one: Conclusion, groups: Mapping[int, GroupDump]) -> int | None:
    """Return the number of the op that ranks waited in, if the log has no number (gloo): their
    first op that is not complete, else their last. An op that timed out may count as complete."""
    waiting = [groups[rank] for rank in one.ranks if rank in groups and groups[rank].last]
    seqs = [
        min((seq for seq, op in group.ops.items() if not op.complete), default=group.last)
        for group in waiting
    ]  # fmt: skip
    if not seqs:
        return None
    ops = [group.ops[min(seqs)].op for group in waiting if min(seqs) in group.ops]
    return min(seqs) if ops and all(_same(one.op, op) for op in ops) else None


def _of_group(name: str, dumps: Sequence[RankDump]) -> Mapping[int, GroupDump]:
    """Return each rank's ops on the group; empty if several groups have this name."""
    found: dict[int, GroupDump] = {}
    for dump in dumps:
        same = [group for group in dump.groups if _is(name, group)]
        if len(same) == 1:
            found[dump.rank] = same[0]
    if len({group.name for group in found.values()}) != 1:
        return {}
    some = next(iter(found.values()))
    for dump in dumps:
        none = not any(_is(name, group) for group in dump.groups)
        if none and (name == "default" or dump.rank in some.ranks):
            found[dump.rank] = replace(some, last=0, ops={})
    return found


def _is(name: str, group: GroupDump) -> bool:
    if name == "default":
        return group.description == "default_pg" or group.name == "0"
    return name in (group.description, group.name)


def _exact(one: Conclusion, seq: int, groups: Mapping[int, GroupDump]) -> Conclusion:
    """Return the conclusion with the dumps' facts about op ``seq``, if they exceed the log's."""
    at = {rank: group.ops[seq] for rank, group in groups.items() if seq in group.ops}
    place = next((op.place for op in at.values() if op.place), one.place)
    waiting = tuple(sorted({*one.ranks, *(rank for rank, op in at.items() if not op.complete)}))
    differ = odd({rank: signature(op.op, op.num_in, op.num_out) for rank, op in at.items()})
    if differ is not None:
        culprits, facts = differ
        return replace(one, kind="mismatch", culprits=culprits, ranks=waiting, facts=facts,
                       place=place)  # fmt: skip
    behind = tuple(sorted(rank for rank, group in groups.items() if group.last < seq))
    if behind:
        unknown = tuple(rank for rank in one.culprits if rank not in groups)
        culprits = tuple(sorted({*behind, *unknown}))
        ranks = tuple(rank for rank in waiting if rank not in culprits)
        return replace(one, kind="missing-rank", culprits=culprits, ranks=ranks,
                       facts=_last(behind, groups), place=place)  # fmt: skip
    members = next((group.ranks for group in groups.values() if group.ranks), ())
    if members and set(members) <= groups.keys() and one.kind != "mismatch":
        return replace(one, kind="stuck-op", culprits=(), ranks=waiting, facts=(), place=place)
    return replace(one, place=place)


def _last(behind: Sequence[int], groups: Mapping[int, GroupDump]) -> Facts:
    """Return the last op of the ranks that are behind, and its place, if all have the same."""
    last = max(groups[rank].last for rank in behind)
    facts: Facts = (("last", last),)
    ops = {groups[rank].ops.get(groups[rank].last) for rank in behind}
    only = next(iter(ops)) if len(ops) == 1 else None
    if only is not None and only.place is not None:
        file, line, function = only.place
        facts += (("last_op", only.op), ("file", file), ("line", line), ("function", function))
    return facts
