"""Ranks that called different ops, or the same one with other arguments; and ranks of which two
threads issue ops on one group, where nothing says which comes first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.comm.matching import CALLS_LABEL, calls, compared
from pardbg.analysis.comm.op_rows import CollectiveRow, P2PRow
from pardbg.analysis.comm.ops import UNKNOWN_OP, Issue, group_label, issues, tail_start
from pardbg.analysis.findings import rehearsed
from pardbg.analysis.findings.reasons import START_LOAD
from pardbg.analysis.findings.shared import Evidence, Finding, at_row, first
from pardbg.analysis.hangs.newest import newest_collectives, newest_messages
from pardbg.analysis.hangs.stacks import place
from pardbg.analysis.hangs.standstill import host_load, issue_places, seen
from pardbg.store.process import Process
from pardbg.words import agreed, ranks_text, sizes
from pardbg_agent import wire

Key = tuple[int, str]
LEAST_STEPS: Final = 2
"""Steps before in which a rank must have done the same thing at a place."""
LAST_STEPS: Final = 8
_HISTORY_ROWS: Final = 2048
_MAX_PLACES: Final = 4
_OTHER: Final = int(wire.Flag.OTHER_THREAD)
_LAST: Final = 2048
"""Ops per rank that are looked at for threads that cross."""
Ops = Mapping[int, tuple[bool, int, int]]
"""seq -> (by another thread, op's id, when)"""
_ADVICE: Final = {
    "op mismatch": "All ranks of a group must call the same ops in the same order.",
    "size mismatch": "All ranks must bring tensors of the same size to this op: look at uneven "
    "last batches and at parameters that differ.",
    "dtype mismatch": "All ranks must bring the same dtype; the backend adds the bytes up as they "
    "are and says nothing.",
    "root mismatch": "All ranks must name the same src or dst: a global rank, also in subgroups.",
}

CALL_ADVICE: Final = (
    "All ranks must call init_process_group with one address, port and world size, and new_group, "
    "split_group and init_device_mesh in the same order with the same arguments."
)
DECIDED_AFTER_NS: Final = 1_000_000_000
"""Maximum wait for ranks that have not come, to know which ones differ from most; times the threads
that share a core of their host, as in a start-up: set-up calls too."""


def mismatches(view: View) -> Iterable[Finding]:
    """Find one per group, kind and culprits: the first that is known, and how many there are."""
    found: dict[tuple[Key, str, tuple[int, ...]], list[CollectiveRow]] = {}
    shifted: set[Key] = set()
    for row in (*newest_collectives(view), *calls(view)):
        if row.key in shifted or not row.verdict.endswith("mismatch"):
            continue
        if row.verdict == "op mismatch":
            shifted.add(row.key)  # what follows in this group is shifted against each other
        found.setdefault((row.key, row.verdict, row.culprits), []).append(row)
    by_threads = crossed(view)
    found = {key: rows for key, rows in found.items() if key[0] not in by_threads}
    known = {key: rows for key, rows in found.items() if key[2]}
    for (group, verdict, culprits), rows in found.items():
        if not culprits:
            of_others = [k for g, v, k in known if (g, verdict) == (group, v)]
            rows = [row for row in rows if not _too_early(view, row, of_others)]
        if rows:
            yield _finding(view, rows)


def _too_early(view: View, row: CollectiveRow, known: Sequence[tuple[int, ...]]) -> bool:
    """Return whether ranks still to come decide who differs from most: one that has come is known
    to differ elsewhere, or the others had no time yet."""
    came = set(row.issued)
    if len(came) == len(row.arrivals):
        return False
    if any(came & set(culprits) for culprits in known):
        return True
    longest = DECIDED_AFTER_NS * max(1.0, min(host_load(view, view.ranks), START_LOAD))
    return view.run_end is None and view.t_ns - first(row) < longest


def _finding(view: View, rows: Sequence[CollectiveRow]) -> Finding:
    row = rows[0]
    said = ""
    if not row.culprits:
        row, said = _who(view, row)
    again = f" Same in {len(rows)} of the last collectives." if len(rows) > 1 else ""
    stands = {a.rank for a in row.arrivals if a.completed_ns is None}
    places = (_place(view, row, r, r in stands) for r in row.culprits)
    return Finding(
        kind="call-mismatch" if row.label == CALLS_LABEL else row.verdict.replace(" ", "-"),
        severity="error",
        ranks=tuple(row.issued),
        culprits=row.culprits,
        group=row.group,
        seq=row.seq,
        where=next((at for at in places if at), None),
        t_ns=first(rows[-1]),
        text=f"{row.verdict} in {row.label} #{row.seq}: {row.detail}.{said}{again}",
        advice=CALL_ADVICE if row.label == CALLS_LABEL else _ADVICE[row.verdict],
        evidence=at_row(row, row.culprits[0] if row.culprits else None),
        first_ns=first(row),
    )


def _who(view: View, row: CollectiveRow) -> tuple[CollectiveRow, str]:
    """Half against half: the ranks that differ from what they did there in the steps before, if
    the others do not; else nobody, and where each stands."""
    culprits, steps = _differing(view, row)
    if culprits:
        verb = agreed("differs", culprits)
        text = f" {ranks_text(culprits).capitalize()} {verb} from the {steps} steps before."
        return replace(row, culprits=culprits), text
    stands = {a.rank for a in row.arrivals if a.completed_ns is None}
    places = ((rank, _place(view, row, rank, rank in stands)) for rank in row.issued)
    said = (f"rank {rank} at {where}" for rank, where in places if where)
    at = ", ".join(islice(said, _MAX_PLACES))
    return row, f" Which side is wrong cannot be told{f': {at}' if at else ''}."


def _place(view: View, row: CollectiveRow, rank: int, stands: bool) -> str | None:
    """Return where a rank issued an op, where that is known of an asynchronous one or from a
    rehearsal; else where it stands in it."""
    known = issue_places(view).get((rank, row.key[1], row.seq)) if stands else None
    return known or _place_then(view, rank, row.issued.get(rank), stands)


def _place_then(view: View, rank: int, issued_ns: int | None, stands: bool) -> str | None:
    """The same of an op that is known by when it was issued: of one host's clock."""
    at = rank, issued_ns or 0
    known = rehearsed.places(view).get(at) or issue_places(view).get(at)
    return known or (place(seen(view, rank).frames) if stands and rank in view.ranks else None)


@per_view
def _differing(view: View, row: CollectiveRow) -> tuple[tuple[int, ...], int]:
    """(ranks that do something else than in the steps before, how many steps that are)."""
    by_rank: dict[int, dict[int, Issue]] = defaultdict(dict)
    for issue in issues(view, "issue", tail_start(view, "issue", _HISTORY_ROWS)):
        if (issue.group.epoch, issue.group.key) == row.key:
            by_rank[issue.rank][issue.seq] = issue
    usual: dict[int, tuple[bool, int]] = {}
    for rank, ops in by_rank.items():
        known = _as_before(row, ops)
        if row.seq in ops and known is None:
            return (), 0
        if known is not None:
            usual[rank] = known
    odd = tuple(sorted(rank for rank, (same, _) in usual.items() if not same))
    if not odd or len(odd) == len(usual):
        return (), 0
    return odd, min(number for _, number in usual.values())


def _as_before(row: CollectiveRow, ops: dict[int, Issue]) -> tuple[bool, int] | None:
    """(one rank's op is what it was at this place of the steps before, how many steps); None
    where they differ among themselves, or are too few."""
    now = ops.get(row.seq)
    if now is None:
        return None
    by_step: dict[int, list[Issue]] = defaultdict(list)
    for seq in sorted(ops):
        by_step[ops[seq].step].append(ops[seq])
    whole = sorted(by_step)[1:]  # the oldest may be cut
    place_in_step = sum(issue.seq < row.seq for issue in by_step[now.step])
    before = [
        compared(row.verdict, by_step[step][place_in_step])
        for step in whole if step < now.step and len(by_step[step]) > place_in_step
    ][-LAST_STEPS:]  # fmt: skip
    if len(before) < LEAST_STEPS or len(set(before)) > 1 or now.step not in whole:
        return None
    return compared(row.verdict, now) == before[0], len(before)


# -- threads


@per_view
def crossed(view: View) -> dict[Key, Finding]:
    """Return (epoch, group) -> the first op that some ranks issued by their main thread and others
    by another one, where ranks use the group from both."""
    several = any(process.threads for process in view.ranks.values())
    return dict(_crossed(view)) if several else {}


def thread_order(view: View) -> Iterable[Finding]:
    """Find one per group, with all its ranks at once: not while another's op is on its way."""
    here = [f for key, f in crossed(view).items() if not _on_its_way(view, key, f)]
    return here[:_MAX_PLACES]


def _on_its_way(view: View, key: Key, finding: Finding) -> bool:
    groups = view.ranks[finding.ranks[0]].groups.values()
    members = next(set(g.ranks) for g in groups if (g.epoch, g.key) == key)
    missing = (members & view.ranks.keys()) - set(finding.ranks)
    return bool(missing) and view.run_end is None and view.t_ns - finding.t_ns < _MOMENT_NS


def _crossed(view: View) -> Iterable[tuple[Key, Finding]]:
    groups: dict[Key, dict[int, Ops]] = defaultdict(dict)
    for rank, process in view.ranks.items():
        for key, ops in _threads_ops(view, process).items():
            groups[key][rank] = ops
    for key, by_rank in groups.items():
        both = [r for r, ops in by_rank.items() if len({by for by, _, _ in ops.values()}) > 1]
        times: dict[int, set[bool]] = defaultdict(set)
        for rank in both:
            for seq, (by, _, _) in by_rank[rank].items():
                times[seq].add(by)
        odd = min((seq for seq, by in times.items() if len(by) > 1), default=None)
        if odd is not None:
            yield key, _threads_finding(view, key, odd, {rank: by_rank[rank] for rank in both})


def _threads_ops(view: View, process: Process) -> dict[Key, dict[int, tuple[bool, int, int]]]:
    table, visible = view.rows(process, "issue")
    part, columns = slice(max(0, visible - _LAST), visible), ("group_id", "seq", "flags")
    found: dict[Key, dict[int, tuple[bool, int, int]]] = defaultdict(dict)
    for gid, seq, flags, name_id, t0 in table.tuples(part, *columns, "name_id", "t0_ns"):
        group = process.groups.get(gid)
        if group is not None:
            found[group.epoch, group.key][seq] = (bool(flags & _OTHER), name_id, t0)
    return found


def _threads_finding(view: View, key: Key, seq: int, by_rank: Mapping[int, Ops]) -> Finding:
    ranks = tuple(sorted(by_rank))
    did: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        if seq in by_rank[rank]:
            other, op_id, _ = by_rank[rank][seq]
            op = view.ranks[rank].ops.get(op_id, UNKNOWN_OP).op
            did[f"{op} by {'another' if other else 'the main'} thread"].append(rank)
    names = sorted({name for rank in ranks for name in view.ranks[rank].threads})
    group = next(g for g in view.ranks[ranks[0]].groups.values() if (g.epoch, g.key) == key)
    label = group_label(view, group)
    stands = {
        f"{name} at {at}": None
        for rank in ranks for name, frames in seen(view, rank).threads if (at := place(frames))
    }  # fmt: skip
    begun = min(ops[seq][2] for ops in by_rank.values() if seq in ops)
    where = [at for rank in ranks if (at := place(seen(view, rank).frames))]
    return Finding(
        kind="thread-order",
        severity="error",
        ranks=ranks,
        culprits=ranks,
        group=label,
        seq=seq,
        where=where[0] if where else None,
        t_ns=begun,
        text=f"{ranks_text(ranks)} issue ops on {label} from two threads (MainThread, "
        f"{', '.join(names[:_MAX_PLACES])}), in an order that differs: #{seq} is "
        f"{', '.join(f'{what} on {ranks_text(who)}' for what, who in did.items())}."
        f"{' Call sites: ' + ', '.join(list(stands)[:_MAX_PLACES]) + '.' if stands else ''}",
        advice="Give each thread a group of its own (new_group), or issue all ops of a group from "
        "one thread.",
        evidence=Evidence(begun, ranks[0], "collectives", op=f"{label} #{seq}"),
    )


_MOMENT_NS: Final = 500_000_000
LEAST_BEFORE: Final = 2
"""Messages of an edge that say what is usual there."""
_MAX_EDGES: Final = 8
_BAD: Final = ("size mismatch", "dtype mismatch")
Edge = tuple[str, int, int]
"""(group, src, dst)"""
MESSAGE_ADVICE: Final = {
    "p2p-size-mismatch": "Both sides must bring tensors of one size: look at shapes that are "
    "worked out apart from each other, and at a last batch.",
    "p2p-dtype-mismatch": "Both sides must bring one dtype: the bytes arrive as they are, and "
    "nothing says that they are read as other numbers.",
}


def messages(view: View) -> Iterable[Finding]:
    """Per edge and kind the first message that does not fit, and how many there are."""
    by_edge: dict[Edge, list[P2PRow]] = defaultdict(list)
    for row in newest_messages(view):
        by_edge[row.group, row.src, row.dst].append(row)
    told = 0
    for rows in by_edge.values():
        for made in _uneven(view, rows):
            if told < _MAX_EDGES:
                yield made
            told += 1


@per_view
def mispaired(view: View) -> frozenset[int]:
    """Ranks in a message whose sides do not fit: that they wait, or abort, follows from it."""
    return frozenset(rank for finding in messages(view) for rank in finding.ranks)


def _uneven(view: View, rows: Sequence[P2PRow]) -> Iterable[Finding]:
    for verdict in _BAD:
        bad = [row for row in rows if row.verdict == verdict and row.sides is not None]
        if bad:
            yield _sides(view, bad, [row for row in rows if row.verdict == "matched"])


def _sides(view: View, bad: Sequence[P2PRow], good: Sequence[P2PRow]) -> Finding:
    row, number = bad[0], len(bad)
    assert row.sides is not None
    what = 0 if row.verdict == "size mismatch" else 1
    said = sizes(side[0] for side in row.sides)
    says = [said[side[0]] if what == 0 else f"{side[1]} ({said[side[0]]})" for side in row.sides]
    usual = {r.sides[0][what] for r in good if r.sides is not None and r.tag == row.tag}
    culprits, why = _odd([side[what] for side in row.sides], usual, len(good), row)
    again = f" Same in {number} of the last messages." if number > 1 else ""
    return _message_finding(
        view, row, f"p2p-{row.verdict.replace(' ', '-')}", culprits,
        f"{row.verdict} between ranks {row.src} and {row.dst}: rank {row.src} sends {says[0]}, "
        f"rank {row.dst} receives {says[1]}.{why}{again}",
    )  # fmt: skip


def _odd(
    values: Sequence[object], usual: set[int | str], before: int, row: P2PRow
) -> tuple[tuple[int, ...], str]:
    """(who differs from the messages before, in words); both where that is not known."""
    both = (row.src, row.dst)
    if len(usual) == 1 and before >= LEAST_BEFORE:
        odd = tuple(rank for rank, value in zip(both, values, strict=True) if value not in usual)
        if len(odd) == 1:
            return odd, f" Rank {odd[0]} differs from the messages before."
    return tuple(sorted(both)), ""


def _message_finding(
    view: View, row: P2PRow, kind: str, culprits: tuple[int, ...], text: str
) -> Finding:
    ends = ((row.src, row.send_ns), (row.dst, row.recv_ns))
    places = {rank: _place_then(view, rank, when, True) for rank, when in ends}
    at = ", ".join(f"rank {rank} at {where}" for rank, where in places.items() if where)
    begun = min(t for t in (row.send_ns, row.recv_ns) if t is not None)
    return Finding(
        kind=kind,
        severity="error",
        ranks=(row.src, row.dst),
        culprits=culprits,
        group=row.group,
        where=next((places[r] for r in culprits if places.get(r)), None),
        t_ns=begun,
        text=f"{text}{f' Where: {at}.' if at else ''}",
        advice=MESSAGE_ADVICE[kind],
        evidence=Evidence(begun, culprits[0], "collectives", op=f"{row.src}→{row.dst}"),
    )  # fmt: skip
