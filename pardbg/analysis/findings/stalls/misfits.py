"""Ops of ranks that do not fit: groups whose collectives disagree, messages whose sides differ,
groups on which two threads of a rank issue ops. Facts for detectors, not findings yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.comm.matching import calls
from pardbg.analysis.comm.op_rows import P2PRow
from pardbg.analysis.comm.ops import UNKNOWN_OP
from pardbg.analysis.findings.finding import GroupKey
from pardbg.analysis.hangs.newest import judged_messages, newest_collectives
from pardbg.store.process import Process
from pardbg_agent import wire

_STOPS: Final = ("op mismatch", "size mismatch", "root mismatch")
_OTHER: Final = int(wire.Flag.OTHER_THREAD)
_LAST_PARTS: Final = 256
"""Number of recent parts of all_to_alls looked at, per rank."""
_LAST: Final = 2048
"""Number of recent ops looked at for threads that cross, per rank."""
Ops = Mapping[int, tuple[bool, int, int]]
"""seq -> (whether another than the main thread issued it, id of the op, time in ns)"""
LEAST_BEFORE: Final = 2
"""Minimum number of earlier messages of an edge that show what is usual."""
_LAST_BEFORE: Final = 8
_MOST_IN_TURN: Final = 8
"""Maximum number of messages of an edge that differ in turn, step by step."""
MAX_MESSAGES: Final = 8


@per_view
def split_groups(view: View) -> set[GroupKey]:
    """Return groups whose last collectives disagree in a way that hangs; a dtype mismatch alone
    does not."""
    by_row = {r.key for r in (*newest_collectives(view), *calls(view)) if r.verdict in _STOPS}
    return by_row | {split.key for split in misfit_splits(view)}


@dataclass(frozen=True, slots=True)
class MisfitSplit:
    """Part of an all_to_all for which the two sides have different numbers of bytes."""

    key: GroupKey
    seq: int
    src: int
    dst: int
    sent: int
    expected: int
    t_ns: int
    """Time of issue on the sender's side, in ns; ``dst_ns``: on the receiver's."""
    dst_ns: int


@per_view
def misfit_splits(view: View) -> tuple[MisfitSplit, ...]:
    """Return the parts whose two sides do not fit, in each group's first such all_to_all among the
    recent ones, where both ranks recorded theirs. Parts of no bytes have no record, so ops with
    parts that may be missing are not compared."""
    sides: dict[tuple[GroupKey, int], dict[tuple[int, int], tuple[int, int, int]]]
    sides = defaultdict(dict)
    for rank, process in view.having("part"):
        table, visible = view.rows(process, "part")
        begin = max(0, visible - _LAST_PARTS)
        if process.lost(view.t_ns) or not visible:
            continue
        if begin or table.base or process.missed_before:  # an op's parts have one time
            begin = int(table.when[:visible].searchsorted(table.when[begin], side="right"))
        tail = slice(begin, visible)
        for gid, seq, peer, a, b, t in table.tuples(
            tail, "group_id", "seq", "peer", "a", "b", "t0_ns"
        ):
            if (group := process.groups.get(gid)) is not None:
                sides[(group.epoch, group.key), seq][rank, peer] = a, b, t
    found: dict[GroupKey, list[MisfitSplit]] = {}
    for (key, seq), parts in sorted(sides.items(), key=lambda item: item[0][1]):
        came = {rank: t for (rank, _), (_, _, t) in parts.items()}
        odd = [
            MisfitSplit(key, seq, src, dst, a, parts.get((dst, src), (0, 0, 0))[1], t,
                        came[dst])
            for (src, dst), (a, _, t) in parts.items()
            if dst in came and a != parts.get((dst, src), (0, 0, 0))[1]
        ]  # fmt: skip
        if odd and any(expected for _, expected, _ in parts.values()):
            found.setdefault(key, odd)
    return tuple(chain.from_iterable(found.values()))


def keeps_total(view: View, split: MisfitSplit, rank: int, side: str) -> bool:
    """Return whether the total bytes that a rank sends in this all_to_all (``a``), or receives
    (``b``), are the same as at the same place of each recent step; without steps, as in each recent
    all_to_all."""
    process = view.ranks[rank]
    table, visible = view.rows(process, "issue")
    groups = process.group_ids(split.key)
    by_step: dict[int, list[tuple[int, int]]] = defaultdict(list)
    alike: dict[int, list[tuple[int, int]]] = {}
    for gid, step, seq, moved, op in table.tuples(
        slice(max(0, visible - _LAST), visible), "group_id", "step", "seq", side, "name_id"
    ):
        if gid in groups:
            by_step[step].append((seq, moved))
            if process.ops.get(op, UNKNOWN_OP).op == "all_to_all":
                alike[seq] = [(seq, moved)]
    steps = sorted((by_step if len(by_step) > 1 else alike).items())[1:]  # the oldest may be cut
    now = next(((n, i, of[i][1]) for n, of in steps for i in range(len(of))
                if of[i][0] == split.seq), None)  # fmt: skip
    if now is None:
        return False
    before = [of[now[1]][1] for step, of in steps if step < now[0] and len(of) > now[1]]
    return len(before) >= LEAST_BEFORE and {*before} == {now[2]}


@dataclass(frozen=True, slots=True)
class MisfitMessage:
    """First message of an edge whose sides differ in size or dtype."""

    row: P2PRow
    number: int
    """Number of messages of the edge with the same misfit."""
    odd: int | None
    """Rank that differs from the messages before; None: not known."""

    @property
    def ranks(self) -> tuple[int, int]:
        """Return (sender, receiver)."""
        return self.row.src, self.row.dst


@per_view
def misfit_messages(view: View) -> tuple[MisfitMessage, ...]:
    """Return the first message that does not fit, for each edge and kind of misfit."""
    by_edge: dict[tuple[str, int, int], list[P2PRow]] = defaultdict(list)
    for row in judged_messages(view):
        by_edge[row.group, row.src, row.dst].append(row)
    found = (message for rows in by_edge.values() for message in _misfits(rows))
    return tuple(message for message, _ in zip(found, range(MAX_MESSAGES), strict=False))


def _misfits(rows: Sequence[P2PRow]) -> Iterator[MisfitMessage]:
    good = [row for row in rows if row.verdict == "matched"]
    for part, verdict in enumerate(("size mismatch", "dtype mismatch")):
        bad = [row for row in rows if row.verdict == verdict and row.sides is not None]
        if bad:
            yield MisfitMessage(bad[0], len(bad), _odd(bad[0], part, good))


def _odd(row: P2PRow, part: int, good: Sequence[P2PRow]) -> int | None:
    """Return the only side whose size (part 0) or dtype (1) breaks the pattern of earlier messages;
    for a size, of those with its dtype, as a pipeline begins with messages about shapes."""
    if row.sides is None:
        return None
    before = [
        r.sides[0][part] for r in good
        if r.sides is not None and r.tag == row.tag and _when(r) < _when(row)
        and (part or r.sides[0][1] == row.sides[0][1])
    ]  # fmt: skip
    usual = _next(before)
    if usual is None:
        return None
    ranks = zip((row.src, row.dst), row.sides, strict=True)
    odd = [rank for rank, side in ranks if side[part] != usual]
    return odd[0] if len(odd) == 1 else None


def _next(before: Sequence[int | str]) -> int | str | None:
    """Return the next value if all are alike or repeat in turn; None: not known."""
    for turn in range(1, _MOST_IN_TURN + 1):
        last = before[-_LAST_BEFORE * turn :]
        if len(last) >= (LEAST_BEFORE + 1) * turn - 1 and last[turn:] == last[:-turn]:
            return last[-turn]
    return None


def _when(row: P2PRow) -> int:
    return min(t for t in (row.send_ns, row.recv_ns) if t is not None)


@dataclass(frozen=True, slots=True)
class ThreadCrossing:
    """First op of a group that a main thread issued on some ranks, another thread on others."""

    seq: int
    by_rank: Mapping[int, Ops]
    """rank -> ops of the group, for ranks that issue them from two threads."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that use the group from two threads."""
        return tuple(sorted(self.by_rank))


@per_view
def thread_crossings(view: View) -> dict[GroupKey, ThreadCrossing]:
    """Return group -> its first op issued by different threads on different ranks."""
    found: dict[GroupKey, ThreadCrossing] = {}
    for key, by_rank in _threads_by_group(view).items():
        both = [r for r, ops in by_rank.items() if len({by for by, _, _ in ops.values()}) > 1]
        issued: dict[int, set[bool]] = defaultdict(set)
        for rank in both:
            for seq, (by, _, _) in by_rank[rank].items():
                issued[seq].add(by)
        odd = min((seq for seq, by in issued.items() if len(by) > 1), default=None)
        if odd is not None:
            found[key] = ThreadCrossing(odd, {rank: by_rank[rank] for rank in both})
    return found


def threads_differ(view: View, key: GroupKey, seq: int) -> bool:
    """Return whether some ranks issued this op from their main thread and some from another one."""
    by_rank = _threads_by_group(view).get(key, {})
    return len({ops[seq][0] for ops in by_rank.values() if seq in ops}) > 1


@per_view
def _threads_by_group(view: View) -> dict[GroupKey, dict[int, Ops]]:
    """Return group -> rank -> its newest ops; empty if only main threads issue ops."""
    groups: dict[GroupKey, dict[int, Ops]] = defaultdict(dict)
    if any(process.threads for process in view.ranks.values()):
        for rank, process in view.ranks.items():
            for key, ops in _threads_ops(view, process).items():
                groups[key][rank] = ops
    return groups


def _threads_ops(view: View, process: Process) -> dict[GroupKey, dict[int, tuple[bool, int, int]]]:
    table, visible = view.rows(process, "issue")
    part, columns = slice(max(0, visible - _LAST), visible), ("group_id", "seq", "flags")
    found: dict[GroupKey, dict[int, tuple[bool, int, int]]] = defaultdict(dict)
    for gid, seq, flags, name_id, t0 in table.tuples(part, *columns, "name_id", "t0_ns"):
        group = process.groups.get(gid)
        if group is not None:
            found[group.epoch, group.key][seq] = (bool(flags & _OTHER), name_id, t0)
    return found
