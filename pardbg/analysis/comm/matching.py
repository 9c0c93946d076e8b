"""Collectives matched over their group's ranks: arrivals, skew, transfer, bandwidth, verdict."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import MEMO_MAX, View, per_look, per_view
from pardbg.analysis.base.holds import unheld_ns, was_held
from pardbg.analysis.base.times import are_launches
from pardbg.analysis.base.times import times as run_times
from pardbg.analysis.comm.collective_columns import (
    MAX_MEMBERS,
    SAYS,
    CollectiveColumns,
    IssuedCollectives,
    by_step,
)
from pardbg.analysis.comm.op_rows import Arrival, CollectiveRow, Verdict
from pardbg.analysis.comm.ops import (
    UNKNOWN_OP,
    Issue,
    group_label,
    is_undefined,
    is_unrecorded,
    issues,
    tail_start,
)
from pardbg.store.definitions import GroupDef, OpDef
from pardbg.words import agreed, at_most, duration, ranks_text, sizes
from pardbg_agent import wire
from pardbg_agent.tables.c10d_ops import Side, Traffic, kind_of

LAST: Final = 200
_MARGIN: Final = 1.6
"""Factor of ops read ahead, as the oldest collectives of a tail are incomplete."""
_FEW: Final = 40
"""Number of rows assumed for each collective in the first attempt."""
MISSING_AFTER_NS: Final = 1_000_000_000
"""Minimum wait of other ranks before a rank counts as missing, in ns."""
Key = tuple[int, str, int]
Times = tuple[int | None, int | None, int | None]
"""(skew, wait, transfer) in ns"""
_A: Final = attrgetter("a")
_B: Final = attrgetter("b")
_FIRST: Final = attrgetter("t0_ns", "rank")
CALLS_LABEL: Final = "set-up calls"
_INIT: Final = "init_process_group"
_MOST_ARRIVALS: Final = 1 << 17
"""Maximum number of arrivals in cached collectives; with many ranks each has many."""


def collectives(view: View, last: int | None = LAST) -> tuple[CollectiveRow, ...]:
    """Return the last collectives as of the cursor, oldest first; ``last=None``: all of the run."""
    widest: tuple[int | None, tuple[CollectiveRow, ...]] = view.of_look.get("collectives", (0, ()))
    known, rows = widest
    if known is not None and (last is None or known < last):
        known, rows = view.of_look["collectives"] = (last, _collectives(view, last))
    return rows if last is None or last == known else rows[-last:]


def _collectives(view: View, last: int | None) -> tuple[CollectiveRow, ...]:
    found = _tail(view, last)
    most = max(2 * LAST, _MOST_ARRIVALS // max(len(view.ranks), 1))
    cache = view.memo("collectives", min(most, MEMO_MAX))
    keys = {at: found.key(at) for at in found.last(last)}
    rows: dict[int, CollectiveRow] = {}
    for at, key in keys.items():
        kept: CollectiveRow | None = cache.get(key)
        if kept is not None and _closed_before(kept, view.t_ns):
            rows[at] = kept
    alike = [at for at in keys if at not in rows and _is_uniform(view, found, at)]
    rows |= {at: _row(view, *of) for at, of in zip(alike, found.facts(alike), strict=True)}
    for at, parts in found.parts([at for at in keys if at not in rows]).items():
        rows[at] = match(view, parts, found.reached(at))
    cache.update({key: rows[at] for at, key in keys.items() if rows[at].verdict == "matched"})
    return tuple(rows[at] for at in keys)


@per_look
def ended_alike(view: View) -> frozenset[Key]:
    """Return which of the newest collectives all ranks issued alike and completed."""
    found = _tail(view, LAST)
    return frozenset(found.key(at) for at in np.flatnonzero(found.alike).tolist())


@per_look
def _tail(view: View, last: int | None) -> IssuedCollectives:
    """Return issued ops that include the last collectives. Groups are mostly small, so few rows are
    read first; if that cuts one of the collectives, all rows that may be needed."""
    rows = None if last is None else int(_MARGIN * last * max(len(view.ranks), 1)) + 64
    if last is not None and rows is not None and rows > (few := _FEW * last):
        found = IssuedCollectives(view, tail_start(view, "issue", few))
        newest = found.last(last)
        if len(newest) == last and not any(found.cut(at) for at in newest if not found.alike[at]):
            return found
    return IssuedCollectives(view, tail_start(view, "issue", rows))


def matched_in(view: View, since_ns: int, steps: Collection[int], most: int) -> CollectiveColumns:
    """Return the matched collectives of these steps, issued since a time by at least two ranks;
    only the newest if there are more than about ``most`` issues."""
    oldest = tail_start(view, "issue", most)
    found = IssuedCollectives(view, max(since_ns, oldest))
    order, close = _of_steps(view, found, steps)
    if since_ns > oldest and any(found.cut(at) for at in close):
        found = IssuedCollectives(view, oldest)
        order, close = _of_steps(view, found, steps)
    parts = found.parts(close)
    rows = {at: match(view, of, found.reached(at)) for at, of in parts.items()}
    order = [at for at in order if at not in rows or rows[at].verdict == "matched"]
    of, whose, ops = found.columns(np.array(order, np.int64))
    for place, row in ((place, rows[at]) for place, at in enumerate(order) if at in rows):
        of["bytes"][place], of["wait_ns"][place] = row.bytes, row.wait_ns or 0
        of["transfer_ns"][place] = -1 if row.transfer_ns is None else row.transfer_ns
        of["last_rank"][place] = -1 if row.last_rank is None else row.last_rank

    def make(places: list[int]) -> list[CollectiveRow]:
        plain = [at for at in map(order.__getitem__, places) if at not in rows]
        rows.update((at, _row(view, *of)) for at, of in zip(plain, found.facts(plain), strict=True))
        return [rows[order[place]] for place in places]

    return by_step(of, whose, ops, make)


def _of_steps(
    view: View, found: IssuedCollectives, steps: Collection[int]
) -> tuple[list[int], list[int]]:
    """Return (collectives of these steps, those of them that must be matched one by one)."""
    order = np.array(found.last(None), np.int64)
    wanted: list[int] = order[np.isin(found.steps[order], list(steps))].tolist()
    return wanted, [at for at in wanted if not _is_uniform(view, found, at)]


def _is_uniform(view: View, found: IssuedCollectives, at: int) -> bool:
    """Return whether all members issued the collective alike and completed it, without holds."""
    return bool(found.alike[at]) and not was_held(view, *found.span(at))


@per_view
def calls(view: View) -> tuple[CollectiveRow, ...]:
    """Return the set-up calls of groups (init_process_group, new_group …) as matched collectives.
    The group of an init_process_group is the world that its rank expects: if worlds differ and each
    has a rank that has not met the others, or one that calls for another world at the same address,
    their ranks wait for each other and count as one."""
    parts: dict[Key, dict[int, Issue]] = defaultdict(dict)
    worlds: dict[tuple[int, int], dict[int, Issue]] = defaultdict(dict)
    num_inits: Counter[int] = Counter()
    for call in issues(view, "call_begin", 0):
        if len(call.group.ranks) > 1:
            parts[call.group.epoch, call.group.key, call.seq].setdefault(call.rank, call)
            if call.op.op == _INIT:
                worlds[call.group.epoch, num_inits[call.rank]][call.rank] = call
                num_inits[call.rank] += 1
    for of in worlds.values():
        keys = {(call.group.epoch, call.group.key, call.seq) for call in of.values()}
        wait = {call.group.key for call in of.values() if call.done_ns is None or call.failed}
        if wait and len({call.op.meets for call in of.values()}) == 1:
            wait |= {
                call.group.key for call in of.values()
                if any(of[r].group.key != call.group.key for r in {*call.group.ranks} & of.keys())
            }  # fmt: skip
        if len(keys) > 1 and all(key in wait for _, key, _ in keys):
            parts = {key: calls for key, calls in parts.items() if key not in keys}
            parts[min(keys)] = of
    rows = [match(view, of, {}) for of in parts.values()]
    return tuple(sorted(rows, key=lambda row: row.seq))


def _closed_before(row: CollectiveRow, t_ns: int) -> bool:
    return all(a.completed_ns is not None and a.completed_ns <= t_ns for a in row.arrivals)


def match(view: View, parts: Mapping[int, Issue], reached: Mapping[int, int]) -> CollectiveRow:
    """Return one collective matched from each rank's issue. ``reached``: rank -> newest number."""
    first: Issue = min(parts.values(), key=_FIRST)
    members, absent, missing, (verdict, detail, culprits), arrivals = _examined(
        view, parts, reached, first
    )
    came = sorted([(a.issued_ns - a.held_ns, a.rank) for a in arrivals if a.issued_ns is not None])
    last_ns, last_rank = came[-1]
    times: Times = (None, None, None)
    if not absent:
        wait = len(came) * last_ns - sum([t for t, _ in came])
        times = last_ns - came[0][0], wait, _transfer(arrivals, last_ns)
    num_bytes = max(0, *map(_A, parts.values()), *map(_B, parts.values()))
    row = _row(
        view, first.group, first.op, first.seq, first.step, num_bytes, arrivals,
        last_rank if not absent and len(parts) > 1 else None, times, len(members),
    )  # fmt: skip
    busbw = row.busbw_gbps if verdict == "matched" else None
    return replace(
        row, verdict=verdict, missing=missing, culprits=culprits, busbw_gbps=busbw,
        detail=detail or row.detail,
    )  # fmt: skip


def _row(
    view: View, group: GroupDef, op: OpDef, seq: int, step: int, num_bytes: int,
    arrivals: tuple[Arrival, ...], last_rank: int | None, times: Times, members: int | None = None,
) -> CollectiveRow:  # fmt: skip
    skew, wait, transfer = times
    if are_launches(view):  # hosts run ahead: the last rank to issue may not arrive last
        skew = wait = last_rank = None
    most = None
    if transfer is not None and arrivals[0].source == "polled":
        transfer, most = None, transfer
    beside_device = run_times(view) == "device" and arrivals[0].source not in ("", "device")
    clock = "host: " if beside_device else ""  # a barrier's times are the host's
    num_members = len(arrivals) if members is None else members
    return CollectiveRow(
        group=group.axis or group.name,
        axis=group.axis,
        seq=seq,
        op=op.op,
        dtype=op.dtype,
        bytes=num_bytes,
        step=step,
        arrivals=arrivals,
        skew_ns=skew,
        last_rank=last_rank,
        wait_ns=wait,
        transfer_ns=transfer,
        busbw_gbps=busbw_gbps(op.op, num_members, num_bytes, transfer),
        verdict="matched",
        missing=(),
        detail=clock + _detail(skew, last_rank, transfer, most),
        reduce=op.reduce,
        key=(group.epoch, group.key),
        label=CALLS_LABEL if group.backend == wire.CALLS else group_label(view, group),
        transfer_most_ns=most,
    )


def _examined(
    view: View, parts: Mapping[int, Issue], reached: Mapping[int, int], first: Issue
) -> tuple[
    tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[Verdict, str, tuple[int, ...]],
    tuple[Arrival, ...],
]:  # fmt: skip
    """Return (members, absent members, missing members, verdict, arrivals) of a collective."""
    members = _members(first.group, parts)
    absent = tuple(rank for rank in members if rank not in parts)
    # A rank that is past this seq did issue it: its record was lost, it is not missing. Nor is one
    # of which it is not known what it issued.
    unrecorded = tuple(
        r for r in absent
        if reached.get(r, -1) >= first.seq or r not in view.ranks
        or is_unrecorded(view.ranks[r], first.t0_ns, view.t_ns)
    )  # fmt: skip
    missing = tuple(r for r in absent if r not in unrecorded)
    verdict = _verdict(view, first, parts, missing, unrecorded)
    return members, absent, missing, verdict, _arrivals(view, members, parts, first.t0_ns)


def _members(group: GroupDef, parts: Mapping[int, Issue]) -> tuple[int, ...]:
    if not group.ranks or len(group.ranks) > MAX_MEMBERS:
        return tuple(sorted(parts))
    return group.ranks + tuple(sorted(set(parts) - set(group.ranks)))


def _arrivals(
    view: View, members: Sequence[int], parts: Mapping[int, Issue], first_ns: int
) -> tuple[Arrival, ...]:
    """Return each member's arrival, including the time that the debugger held it."""
    ends = [view.t_ns if i.done_ns is None else i.done_ns for i in parts.values()]
    held = was_held(view, first_ns, max(ends))
    arrivals = []
    for rank in members:
        issue = parts.get(rank)
        if issue is None:
            arrivals.append(Arrival(rank, None, None, ""))
            continue
        before = inside = 0
        if held:
            end = view.t_ns if issue.done_ns is None else issue.done_ns
            before = issue.t0_ns - first_ns - unheld_ns(view, rank, first_ns, issue.t0_ns)
            inside = max(0, end - issue.t0_ns) - unheld_ns(view, rank, issue.t0_ns, end)
        arrivals.append(
            Arrival(rank, issue.t0_ns, issue.done_ns, issue.source, before, max(0, inside))
        )
    return tuple(arrivals)


def _transfer(parts: Sequence[Arrival], last_arrival: int) -> int | None:
    """Return last completion - last arrival in ns; None unless all completions have one source."""
    left = [a.completed_ns - a.held_ns - a.held_in_ns for a in parts if a.completed_ns is not None]
    if len(left) < len(parts):
        return None
    kinds = {a.source for a in parts}
    if len(kinds) != 1 or "" in kinds:  # "": completed at an unknown time
        return None
    # No hold makes a transfer longer than from the last arrival to the end, as they really were.
    real = max(a.completed_ns or 0 for a in parts) - max(a.issued_ns or 0 for a in parts)
    return max(0, min(max(left) - last_arrival, real))


def busbw_factor(op: str, num_ranks: int) -> float | None:
    """Return the factor from algbw to busbw (nccl-tests); None for ops that move no data."""
    traffic, share = kind_of(op).traffic, (num_ranks - 1) / max(1, num_ranks)
    if num_ranks < 2 or traffic is Traffic.NONE:
        return None
    return {Traffic.SHARE: share, Traffic.TWO_SHARES: 2 * share}.get(traffic, 1.0)


def busbw_gbps(op: str, num_ranks: int, num_bytes: int, transfer_ns: int | None) -> float | None:
    """Return the bus bandwidth in GB/s (1e9 bytes), which equals bytes/ns."""
    factor = busbw_factor(op, num_ranks)
    if factor is None or not transfer_ns or num_bytes <= 0:
        return None
    return factor * num_bytes / transfer_ns


def _verdict(
    view: View,
    first: Issue,
    parts: Mapping[int, Issue],
    missing: tuple[int, ...],
    unrecorded: tuple[int, ...],
) -> tuple[Verdict, str, tuple[int, ...]]:
    differing = _mismatch(parts)
    if differing is not None:
        return differing
    if is_undefined(first.group):
        return "incomplete", "the definition of its group is missing", ()
    if missing:
        since = _awaited_ns(view, missing, first.t0_ns)
        if since >= MISSING_AFTER_NS or _gone(view, missing):
            ranks = f"{ranks_text(missing)} {agreed('has', missing)}"
            text = f"{ranks} not issued it, {duration(since)} after the first"
            return "missing rank", text, missing
        return "incomplete", f"waits for {ranks_text(missing)}", missing
    if unrecorded:
        why = "of another role" if view.elsewhere >= set(unrecorded) else "not recorded"
        return "incomplete", f"{ranks_text(unrecorded)} {why}", ()
    failed = tuple(sorted([i.rank for i in parts.values() if i.failed]))
    if failed:
        return "incomplete", f"failed on {ranks_text(failed)}", failed
    pending = tuple(sorted([i.rank for i in parts.values() if i.done_ns is None]))
    if pending:
        return "incomplete", f"not complete on {ranks_text(pending)}", ()
    return "matched", "", ()


def _awaited_ns(view: View, ranks: Sequence[int], since_ns: int) -> int:
    """Return how long others have waited for ranks, without the debugger's holds, in ns."""
    if not was_held(view, since_ns, view.t_ns):
        return view.t_ns - since_ns
    return max(unheld_ns(view, rank, since_ns, view.t_ns) for rank in ranks)


def _gone(view: View, ranks: Sequence[int]) -> bool:
    return view.run_end is not None or any(
        view.proc_end(view.ranks[rank]) is not None for rank in ranks if rank in view.ranks
    )


def _mismatch(parts: Mapping[int, Issue]) -> tuple[Verdict, str, tuple[int, ...]] | None:
    """Return the ranks' first disagreement, that on the op first, as the others follow from it;
    None: they agree. Ops without a definition are not compared."""
    ordered = [parts[rank] for rank in sorted(parts) if parts[rank].op is not UNKNOWN_OP]
    if len({(*SAYS(i.op), i.peer, i.a, i.b) for i in ordered}) <= 1:
        return None
    checks: tuple[tuple[Verdict, Mapping[int, object]], ...] = (
        ("op mismatch", _op_texts(ordered)),
        ("root mismatch", {i.rank: _root(i) for i in ordered}),
        ("dtype mismatch", {i.rank: i.op.dtype for i in ordered}),
        ("size mismatch", _sizes(ordered[0].op.op, ordered)),
        ("address mismatch", _addresses(ordered)),
    )
    for verdict, values in checks:
        if len(set(values.values())) > 1:
            shown = values if verdict != "op mismatch" else _op_texts(ordered, whole=True)
            return verdict, _sides_text(shown, verdict == "size mismatch"), odd_ones(values)
    return None


def compared(verdict: str, issue: Issue) -> object:
    """Return the field of one rank's op that a mismatch verdict compares."""
    if verdict == "op mismatch":
        return _op_text(issue)
    if verdict == "root mismatch":
        return _root(issue)
    if verdict == "dtype mismatch":
        return issue.op.dtype
    return issue.b if kind_of(issue.op.op).equal is Side.OUT else issue.a


def _op_texts(ordered: Sequence[Issue], whole: bool = False) -> dict[int, object]:
    """Return rank -> op and reduction. A reduction unknown to one rank is not compared: Python's
    hooks cannot see that of an op issued by C++, the native hooks can. The host of an
    init_process_group is included only if ``whole``, as it may have several names."""
    unknown = {i.op.op for i in ordered if not i.op.reduce}
    met = not whole and _met(ordered)
    return {i.rank: i.op.op if i.op.op in unknown else _op_text(i, met, whole) for i in ordered}


def _op_text(issue: Issue, met: bool = False, whole: bool = True) -> str:
    """Return the op and its reduction, with the address of an init_process_group unless that has
    completed (``met``): ranks may write it in several ways (localhost, its number, own stores)."""
    op = issue.op
    at = op.meets if whole else op.meets.rpartition(":")[2]
    return " ".join(filter(None, (op.op, f"at {at}," if at and not met else "", op.reduce)))


def _met(ordered: Sequence[Issue]) -> bool:
    return all(i.done_ns is not None and not i.failed for i in ordered)


def _addresses(ordered: Sequence[Issue]) -> Mapping[int, object]:
    """Return rank -> init_process_group with the host at which it looks for the others; empty if
    they have met."""
    inits = all(i.op.op == _INIT for i in ordered)
    return {i.rank: _op_text(i) for i in ordered} if inits and not _met(ordered) else {}


def _root(issue: Issue) -> int | None:
    if not kind_of(issue.op.op).rooted:
        return None
    return issue.op.root if issue.op.root is not None else issue.peer


def _sizes(op: str, parts: Sequence[Issue]) -> Mapping[int, object]:
    """Return rank -> bytes that must be equal for this op; empty if ranks may differ."""
    equal, outs = kind_of(op).equal, {i.b for i in parts}
    if equal is Side.NEITHER:
        return {}
    if equal is Side.SHARES and len(outs) == 1 and sum(i.a for i in parts) in outs:
        return {}  # uneven shares that add up
    return {i.rank: i.b if equal is Side.OUT else i.a for i in parts}


def _sides_text(values: Mapping[int, object], is_size: bool) -> str:
    """Return text such as ``rank 3: broadcast; ranks 0–2: all_reduce SUM``, with the odd ranks
    first, as a line may be cut."""
    sides = _sides(values)
    smallest_first = sorted(sides.items(), key=lambda item: (len(item[1]), item[1]))
    texts = sizes(value for value in sides if isinstance(value, int)) if is_size else {}
    return "; ".join(
        f"{ranks_text(ranks)}: {texts.get(value, value) if isinstance(value, int) else value}"
        for value, ranks in smallest_first
    )


def _sides(values: Mapping[int, object]) -> dict[object, list[int]]:
    """Return value -> ranks that have it."""
    by_value: dict[object, list[int]] = {}
    for rank, value in values.items():
        by_value.setdefault(value, []).append(rank)
    return by_value


def odd_ones(values: Mapping[int, object]) -> tuple[int, ...]:
    """Return the ranks that differ from the majority; empty if no side is the largest.

    The agent's ``agreement.odd_ones`` has the same rule; one test covers both.
    """
    sides = sorted(_sides(values).values(), key=len, reverse=True)
    if len(sides) < 2 or len(sides[0]) == len(sides[1]):
        return ()
    return tuple(sorted(rank for side in sides[1:] for rank in side))


def _detail(skew: int | None, last_rank: int | None, transfer: int | None, most: int | None) -> str:
    late = "" if skew is None or last_rank is None else f"rank {last_rank} last by {duration(skew)}"
    moves = "" if transfer is None and most is None else f"transfer {at_most(transfer, most)}"
    return ", ".join(filter(None, (late, moves)))
