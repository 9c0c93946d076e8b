"""Finds ranks that called different ops or one op with different arguments, messages whose sides do
not fit, and ranks on which two threads issue ops on one group without any order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, cast

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.comm.matching import CALLS_LABEL, calls, compared
from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.comm.ops import UNKNOWN_OP, Issue, group_label, issues, tail_start
from pardbg.analysis.findings.exits import lost_peer
from pardbg.analysis.findings.finding import Candidate, Evidence, GroupKey, Label, at_row, first
from pardbg.analysis.findings.kinds.mismatch_kinds import (
    MessageMismatch,
    Mismatch,
    Place,
    ThreadOrder,
    Verdict,
)
from pardbg.analysis.findings.stalls import misfits
from pardbg.analysis.findings.stalls.rehearsed import places
from pardbg.analysis.hangs.newest import newest_collectives, passed_collectives
from pardbg.analysis.hangs.op_orders import followed
from pardbg.analysis.hangs.partings import parting
from pardbg.analysis.hangs.stacks import place, thread_title, whole_place
from pardbg.analysis.hangs.standstill import (
    first_place,
    host_load,
    issue_places,
    seen,
    slowdown,
)

LEAST_STEPS: Final = 2
"""Minimum number of earlier steps in which a rank did the same at a place."""
LAST_STEPS: Final = 8
_HISTORY_ROWS: Final = 2048
_SECOND_STEP: Final = 1
_MAX_PLACES: Final = 4
_MAX_THREADED: Final = 4
_MOMENT_NS: Final = 500_000_000
MEET_NS: Final = 10_000_000_000
"""Time for which ranks may take to meet at an address, in ns."""
DECIDED_AFTER_NS: Final = 1_000_000_000
"""Maximum wait, in ns, for missing ranks that may decide which side differs from most."""


def mismatches(view: View) -> Iterator[Candidate]:
    """Find one mismatch per group, kind and culprits: the first one, with the number of repeats."""
    found: dict[tuple[GroupKey, str, tuple[int, ...]], list[CollectiveRow]] = {}
    shifted: set[GroupKey] = set()
    for row in (*passed_collectives(view), *newest_collectives(view), *calls(view)):
        if row.key in shifted or not row.verdict.endswith("mismatch") or _may_meet(view, row):
            continue
        if row.verdict == "op mismatch":
            shifted.add(row.key)  # later ops of this group are shifted against each other
        found.setdefault((row.key, row.verdict, row.culprits), []).append(row)
    for (group, verdict, culprits), rows in found.items():
        others = [k for g, v, k in found if (g, verdict) == (group, v) and k]
        settled = [
            row for row in rows
            if not _crosses_soon(view, row) and (culprits or not _too_early(view, row, others))
        ]  # fmt: skip
        yield _mismatch(view, settled or rows, settled=bool(settled))


def _too_early(view: View, row: CollectiveRow, known: Sequence[tuple[int, ...]]) -> bool:
    """Return whether missing ranks may still decide which side differs from most: a rank that came
    is known to differ elsewhere, or the others have had no time yet."""
    came = set(row.issued)
    if len(came) == len(row.arrivals):
        return False
    if any(came & set(culprits) for culprits in known):
        return True
    longest = DECIDED_AFTER_NS * slowdown(host_load(view, view.ranks))
    return view.run_end is None and view.t_ns - first(row) < longest


def _may_meet(view: View, row: CollectiveRow) -> bool:
    """Return whether ranks that name their meeting place differently may still meet: some have not
    come, or all have just come."""
    if row.verdict != "address mismatch":
        return False
    came = row.issued
    longest = MEET_NS * slowdown(host_load(view, view.ranks))
    return len(came) < len(row.arrivals) or view.t_ns - max(came.values()) < longest


def _crosses_soon(view: View, row: CollectiveRow) -> bool:
    """Return whether an op came from another thread on some ranks only just now: if a rank's other
    op follows in a moment, unordered threads are the cause."""
    if view.run_end is not None or not misfits.threads_differ(view, row.key, row.seq):
        return False
    return view.t_ns - first(row) < _MOMENT_NS * slowdown(host_load(view, view.ranks))


def _mismatch(view: View, rows: Sequence[CollectiveRow], settled: bool) -> Candidate:
    row = rows[0]
    culprits, steps = row.culprits, 0
    if not culprits and settled:
        culprits, steps = _differing(view, row)
    by_order = bool(culprits) and not (row.culprits or steps)
    stands = {a.rank for a in row.arrivals if a.completed_ns is None}
    others = [rank for rank in row.issued if rank not in culprits]
    shown = (*culprits[: _MAX_PLACES - 1], *(others[:1] if culprits else others))
    at = ((rank, _place(view, row, rank, rank in stands)) for rank in shown)
    known: list[Place] = list(islice(((r, where) for r, where in at if where), _MAX_PLACES))
    unknown = ((r, row.issued[r]) for r in shown if r not in dict(known))
    call = row.label == CALLS_LABEL
    return Candidate(
        kind="call-mismatch" if call else row.verdict.replace(" ", "-"), settled=settled,
        ranks=tuple(row.issued), culprits=culprits, group=row.group, seq=row.seq,
        where=known[0][1] if known and known[0][0] in culprits else None, t_ns=first(rows[-1]),
        first_ns=first(row), scope=frozenset([row.key]),
        evidence=at_row(row, culprits[0] if culprits else None),
        facts=Mismatch(
            cast(Verdict, row.verdict), Label(row.label), row.detail, len(rows), call, steps,
            tuple(known), _first_places(view, unknown),
            None if call or len(shown) < 2 else parting(view, row, shown[0], shown[-1]), by_order,
        ),
    )  # fmt: skip


def _place(view: View, row: CollectiveRow, rank: int, stands: bool) -> str | None:
    """Return the place of an op on a rank: where it was issued, if known (asynchronous ops,
    rehearsals); else where the rank stands in it; else the first op of its signature, if it is this
    one."""
    known = issue_places(view).get((rank, row.key[1], row.seq)) if stands else None
    return known or _place_then(view, rank, row.issued.get(rank), stands)


def _place_then(view: View, rank: int, issued_ns: int | None, stands: bool) -> str | None:
    """Return the place of an op as `_place` does, by the time of issue on the rank's own host."""
    at = rank, issued_ns or 0
    known = places(view).get(at) or issue_places(view).get(at)
    if known or rank not in view.ranks:
        return known
    stood = whole_place(seen(view, rank).frames) if stands else None
    known = stood or _given_up_at(view, rank, issued_ns)
    if known or issued_ns is None:
        return known
    first, this_one = first_place(view, rank, issued_ns)
    return first if this_one else None


def _first_places(view: View, ops: Iterable[tuple[int, int | None]]) -> tuple[Place, ...]:
    """Return (rank, place of its first op with the same signature), for ranks and times of
    issue."""
    at = ((rank, first_place(view, rank, t)[0]) for rank, t in ops if t and rank in view.ranks)
    return tuple((rank, where) for rank, where in at if where)


def _given_up_at(view: View, rank: int, issued_ns: int | None) -> str | None:
    """Return the place where an exception ended the rank in its newest op; None: not that op."""
    failed = view.fatal(view.ranks[rank])
    if not failed or not _is_newest(view, rank, issued_ns) or not lost_peer(failed[0]):
        return None
    return whole_place(failed[0].frames)


def _is_newest(view: View, rank: int, issued_ns: int | None) -> bool:
    """Return whether a rank has issued no op after this one: it may stand in it."""
    newest = view.newest_ns(view.ranks[rank], ("issue", "issue_p2p"))
    return issued_ns is None or newest <= issued_ns


@per_view
def _differing(view: View, row: CollectiveRow) -> tuple[tuple[int, ...], int]:
    """Break a tie: return (ranks whose op differs from earlier steps, if only one side's does; the
    number of these steps, 0: it differs from what followed the same ops before). If none does,
    ranks differ that left out ops of the step before."""
    by_rank: dict[int, dict[int, Issue]] = defaultdict(dict)
    for issue in issues(view, "issue", tail_start(view, "issue", _HISTORY_ROWS)):
        if (issue.group.epoch, issue.group.key) == row.key:
            by_rank[issue.rank][issue.seq] = issue
    usual = {rank: known for rank, ops in by_rank.items() if (known := _as_before(row, ops))}
    if any(row.seq in ops and rank not in usual for rank, ops in by_rank.items()):
        return _unlike_before(row, by_rank), 0
    odd = tuple(sorted(rank for rank, (same, _) in usual.items() if not same))
    odd = odd or tuple(sorted(rank for rank in usual if _is_after_less(by_rank[rank], row.seq)))
    if not odd or len(odd) == len(usual):
        return _unlike_before(row, by_rank), 0
    return odd, min(number for _, number in usual.values())


def _unlike_before(row: CollectiveRow, by_rank: dict[int, dict[int, Issue]]) -> tuple[int, ...]:
    """Return ranks whose op is not what followed the same ops before, if that of others is."""
    odd, usual = [], 0
    for rank, ops in sorted(by_rank.items()):
        order = [compared(row.verdict, ops[seq]) for seq in sorted(ops) if seq <= row.seq]
        if row.seq in ops and (known := followed(order[:-1])) is not None:
            usual += known == order[-1]
            odd += [rank] if known != order[-1] else []
    return tuple(odd) if usual else ()


def _by_step(ops: dict[int, Issue]) -> dict[int, list[Issue]]:
    by_step: dict[int, list[Issue]] = defaultdict(list)
    for seq in sorted(ops):
        by_step[ops[seq].step].append(ops[seq])
    return by_step


def _is_after_less(ops: dict[int, Issue], seq: int) -> bool:
    """Return whether a rank's step before this op had fewer ops than each of the earlier ones."""
    by_step = _by_step(ops)
    whole = sorted(by_step)[1:]  # the oldest may be cut
    *earlier, newest = [len(by_step[at]) for at in whole if at < ops[seq].step][-LAST_STEPS:] or [0]
    return len(earlier) >= LEAST_STEPS and newest < min(earlier)


def _as_before(row: CollectiveRow, ops: dict[int, Issue]) -> tuple[bool, int] | None:
    """Return (whether a rank's op is the same as at this place of earlier steps, number of these);
    None if earlier steps differ among themselves or are too few, or if it was there now and then
    before those (an evaluation). An op beyond the number of ops in any earlier step counts as
    different."""
    now = ops.get(row.seq)
    if now is None:
        return None
    by_step = _by_step(ops)
    whole = sorted(by_step)[1:]  # the oldest may be cut
    place_in_step = sum(issue.seq < row.seq for issue in by_step[now.step])
    known = [
        (step, compared(row.verdict, by_step[step][place_in_step]))
        for step in whole if step < now.step and len(by_step[step]) > place_in_step
    ]  # fmt: skip
    seldom = {what for step, what in known[:-LAST_STEPS] if step > _SECOND_STEP}
    known = known[-LAST_STEPS:]
    earlier = sum(step < now.step for step in whole)
    if not known and earlier >= LEAST_STEPS:
        return False, min(earlier, LAST_STEPS)  # no step before has so many ops
    before = [what for _, what in known]
    if len(set(before)) > 1:  # in its second step DDP orders its buckets anew
        before = [what for step, what in known if step > _SECOND_STEP]
    if len(before) < LEAST_STEPS or len(set(before)) > 1 or now.step not in whole:
        return None
    what = compared(row.verdict, now)
    return None if what != before[0] and what in seldom else (what == before[0], len(before))


def thread_order(view: View) -> Iterator[Candidate]:
    """Find one thread crossing per group, with all ranks; unsettled while one's op is to come."""
    number = 0
    for key, crossing in misfits.thread_crossings(view).items():
        on_its_way = _on_its_way(view, key, crossing)
        number += not on_its_way
        yield _crossing(view, key, crossing, settled=not on_its_way and number <= _MAX_THREADED)


def _begun(crossing: misfits.ThreadCrossing) -> int:
    return min(ops[crossing.seq][2] for ops in crossing.by_rank.values() if crossing.seq in ops)


def _on_its_way(view: View, key: GroupKey, crossing: misfits.ThreadCrossing) -> bool:
    groups = view.ranks[crossing.ranks[0]].groups.values()
    members = next(set(g.ranks) for g in groups if (g.epoch, g.key) == key)
    missing = (members & view.ranks.keys()) - set(crossing.ranks)
    return bool(missing) and view.run_end is None and view.t_ns - _begun(crossing) < _MOMENT_NS


def _crossing(
    view: View, key: GroupKey, crossing: misfits.ThreadCrossing, settled: bool
) -> Candidate:
    ranks, seq = crossing.ranks, crossing.seq
    issued: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for rank in ranks:
        if seq in crossing.by_rank[rank]:
            other, op_id, _ = crossing.by_rank[rank][seq]
            issued[view.ranks[rank].ops.get(op_id, UNKNOWN_OP).op, other].append(rank)
    group = next(g for g in view.ranks[ranks[0]].groups.values() if (g.epoch, g.key) == key)
    label, begun = group_label(view, group), _begun(crossing)
    threads = {name for rank in ranks for name in view.ranks[rank].threads}
    stands = {
        (thread_title(one.thread, one.task_of), at): None
        for rank in ranks for one in seen(view, rank).threads if (at := place(one.frames))
    }  # fmt: skip
    where = (at for rank in ranks if (at := place(seen(view, rank).frames)))
    return Candidate(
        kind="thread-order", ranks=ranks, culprits=ranks, group=label, seq=seq, t_ns=begun,
        where=next(where, None), scope=frozenset([key]), settled=settled,
        evidence=Evidence(begun, ranks[0], "collectives", op=f"{label} #{seq}"),
        facts=ThreadOrder(
            Label(label), tuple(sorted(threads)),
            tuple((op, other, tuple(of)) for (op, other), of in issued.items()), tuple(stands),
        ),
    )  # fmt: skip


def messages(view: View) -> Iterator[Candidate]:
    """Find the first message of each edge and kind that does not fit, and the number of repeats."""
    yield from (_message(view, message) for message in misfits.misfit_messages(view))
    by_group: dict[GroupKey, list[misfits.MisfitSplit]] = defaultdict(list)
    for split in misfits.misfit_splits(view):
        by_group[split.key].append(split)
    yield from (_split(view, splits) for splits in by_group.values())


def _split(view: View, splits: Sequence[misfits.MisfitSplit]) -> Candidate:
    """Return the candidate for parts that do not fit. The culprit is the rank in most of them; on a
    tie the sender, as gloo aborts the receiver, unless only the receiver's total has changed."""
    first = splits[0]
    times = Counter(rank for split in splits for rank in (split.src, split.dst))
    most = [rank for rank in times if times[rank] == max(times.values())]
    senders = {split.src for split in splits}
    culprit = next((rank for rank in most if rank in senders), most[0])
    split = next(split for split in splits if culprit in (split.src, split.dst))
    if len(most) > 1 and misfits.keeps_total(view, split, split.src, "a"):
        culprit = culprit if misfits.keeps_total(view, split, split.dst, "b") else split.dst
    groups = view.ranks[culprit].groups.values()
    label = next(group_label(view, g) for g in groups if (g.epoch, g.key) == split.key)
    ends = (split.src, split.t_ns), (split.dst, split.dst_ns)
    at = {rank: _place_then(view, rank, t, _is_newest(view, rank, t)) for rank, t in ends}
    op = Label(f"all_to_all {label} #{split.seq}")
    return Candidate(
        kind="size-mismatch", ranks=tuple(sorted(times)), culprits=(culprit,), group=label,
        seq=split.seq, where=at.get(culprit), t_ns=first.t_ns, scope=frozenset([split.key]),
        evidence=Evidence(split.t_ns, culprit, "collectives", op=op),
        facts=MessageMismatch(
            "size", split.src, split.dst, (split.sent, ""), (split.expected, ""), False,
            len(splits), tuple((rank, where) for rank, where in at.items() if where),
            op, _first_places(view, ((rank, t) for rank, t in ends if not at[rank])),
        ),
    )  # fmt: skip


def _message(view: View, message: misfits.MisfitMessage) -> Candidate:
    row = message.row
    culprits = tuple(sorted(message.ranks)) if message.odd is None else (message.odd,)
    ends = ((row.src, row.send_ns), (row.dst, row.recv_ns))
    at = {rank: _place_then(view, rank, t, _is_newest(view, rank, t)) for rank, t in ends}
    begun = min(t for t in (row.send_ns, row.recv_ns) if t is not None)
    of = "size" if row.verdict == "size mismatch" else "dtype"
    sent, received = row.sides or ((0, ""), (0, ""))
    return Candidate(
        kind=f"p2p-{of}-mismatch", ranks=message.ranks, culprits=culprits, group=row.group,
        where=next((at[r] for r in culprits if at.get(r)), None), t_ns=begun,
        evidence=Evidence(begun, culprits[0], "collectives", op=f"{row.src}→{row.dst}"),
        facts=MessageMismatch(
            "size" if of == "size" else "dtype", row.src, row.dst, sent, received,
            message.odd is not None, message.number,
            tuple((rank, where) for rank, where in at.items() if where),
            first_places=_first_places(view, ((r, t) for r, t in ends if not at[r])),
        ),
    )  # fmt: skip
