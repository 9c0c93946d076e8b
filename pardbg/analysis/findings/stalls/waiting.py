"""Finds ranks that others wait for, deadlocks, and late ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

import pardbg.analysis.findings.kinds.stall_kinds as kinds
from pardbg.analysis.base.asof import View, per_store
from pardbg.analysis.base.control import control_view
from pardbg.analysis.base.holds import was_held
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.comm.p2p import p2p_between
from pardbg.analysis.findings import exits
from pardbg.analysis.findings.finding import Candidate, Evidence, Label, at_row, first
from pardbg.analysis.findings.kinds.absence import GONE, Absence
from pardbg.analysis.findings.kinds.mismatch_kinds import Place
from pardbg.analysis.findings.stalls.absences import absence, activity_ns, other_threads
from pardbg.analysis.hangs.op_orders import odd_one_out
from pardbg.analysis.hangs.stacks import called_place, whole_place
from pardbg.analysis.hangs.standstill import IDLE_CORES, seen
from pardbg.analysis.hangs.waitgraph import (
    PATIENCE_NS,
    Blame,
    PendingOp,
    Wait,
    WaitGraph,
    open_ops,
    wait_graph,
)
from pardbg.analysis.pipeline.pipelines import states
from pardbg.events import fields

LONGEST_PATIENCE_NS: Final = 60_000_000_000
START_NS: Final = 10_000_000_000
"""Additional time for start-up, in ns: imports and models take some ranks longer than others."""
EARLY_NS: Final = 3_000_000_000
"""Wait after which a rank that makes progress may be reported, as a note, in ns."""
UNUSUAL: Final = 5
"""Factor above every earlier wait from which on a wait is unusual."""
LEAST_BEFORE: Final = 8
"""Minimum number of earlier ops for calling a wait unusual."""
BEFORE_NS: Final = 200_000_000
"""Time before the first exception at which a hang's ops are still open, in ns."""
INTO_NS: Final = 250_000_000
"""Time after a wait began at which both the wait and its prelude are visible, in ns."""
STATE_NS: Final = 300_000_000
"""Delay of a rank's state in ns: hubs send it some times a second."""
_STEPS: Final = 32
_MAX_PLACES: Final = 4
MAX_LATE: Final = 8
LATE_NS: Final = 4_000_000_000
"""Minimum skew of a late rank, in ns."""


def moments(view: View) -> Iterator[tuple[View, int | None]]:
    """Yield (view, when the hang was over) for moments at which to look for hangs: the cursor and,
    if the job fell apart or was ended, just before that. The first one with a hang counts."""
    ended = view.run_end
    if ended is not None and not ended[1]:
        return
    bad = exits.bad_ends(view)
    # ranks may clean up for seconds, leave without a trace, or outlive their launcher
    asked = exits.termination(view, bad)
    over = {one.t_ns for one in (*bad[:1], asked) if one is not None}
    yield from ((View(view.store, t_ns - BEFORE_NS), t_ns) for t_ns in sorted(over))
    if ended is None:
        yield view, None


def is_held(view: View) -> bool:
    """Return whether the debugger holds ranks: whoever waits for these waits for the debugger.
    A pause that no rank can follow, as in a hang, holds none."""
    control = control_view(view)
    return control.mode == "held" or bool(control.held)


def waits(view: View, over: int | None) -> Iterator[Candidate]:
    """Find ranks that hold up others at the view's cursor. ``over``: when that ended, in ns."""
    graph = wait_graph(view)
    ended = {end.rank for end in exits.bad_ends(view)}
    for blame in graph.blames:
        if any(seen(view, rank).held for rank in blame.ranks):
            continue  # at a breakpoint: on purpose
        if blame.cycle:
            yield _deadlock(view, graph, blame, over)
            continue
        rank, late = blame.ranks[0], view.t_ns - blame.since_ns
        taker = _taker(view, graph, blame)
        if taker is not None and (over or late >= _first_ns(view, blame)):
            yield _misaddressed(view, blame, taker.op, over)
        elif rank in ended or (over is None and _just_ended(view, rank)):
            continue  # its end is a finding of its own, now or soon
        elif taker is None and not _waits_soon(view, rank):
            yield from _missing(view, graph, blame, over)


def _missing(view: View, graph: WaitGraph, blame: Blame, over: int | None) -> Iterator[Candidate]:
    rank, late = blame.ranks[0], view.t_ns - blame.since_ns
    found, early = absence(view, rank, blame.since_ns, blame.waits[0].op.group), False
    loads = _loads(view, blame, found)
    if not found.fault or loads:
        if _in_op_of_all(graph, blame):
            return  # it comes when that op ends; a stuck op is a finding of its own
        ops = [wait.op for wait in blame.waits]
        given_up = over is not None and exits.any_timed_out(view, ops, over)
        early = not given_up and late < _patience(view, blame, found, loads)
        if early and not (found.progresses and _unusual(view, blame)):
            return
    op = blame.waits[0].op
    facts = kinds.MissingRank(
        blamed=blame.ranks, never_made=_never_made(view, blame), over=over is not None,
        absences=(found,), waits=tuple(_waiting(wait.op) for wait in blame.waits),
        victims=blame.victims, until_ns=over or view.t_ns, early=early,
        gave_up=over is not None and _gave_up(view, blame),
        at=(whole_place(seen(view, op.rank).frames) or "") if found.doing in GONE else "",
    )  # fmt: skip
    direct, indirect = facts.waiting(blame.ranks)
    holder = found.holder
    where = found.place if holder is None else _holds_at(view, holder, found)
    yield Candidate(
        kind=found.kind, ranks=(*direct, *indirect), group=op.name, scope=_scope(blame),
        culprits=blame.ranks if holder is None else (holder,), seq=op.seq, where=where,
        t_ns=blame.since_ns, facts=facts,
        evidence=Evidence(blame.since_ns + INTO_NS, rank, "timeline", op=op.text),
    )  # fmt: skip


def _holds_at(view: View, holder: int, found: Absence) -> str | None:
    """Return the place of an awaited rank, or of its thread that should answer on a socket."""
    now = seen(view, holder)
    call = None if found.blocking is None else found.blocking.call
    threads = other_threads(now) if call == "socket" else ()
    return threads[0][1] if threads else whole_place(now.frames)


def _waiting(op: PendingOp) -> kinds.Waiting:
    return kinds.Waiting(op.rank, Label(op.text), op.since_ns)


def _told_apart(ops: Sequence[PendingOp]) -> tuple[kinds.Waiting, ...]:
    """Return the waits of ops, with torch's own group names where groups share a name and ranks."""
    of: dict[str, set[tuple[int, str]]] = defaultdict(set)
    for op in ops:
        of[op.text] |= {op.key} if not op.p2p and not op.call else set()
    own = {op.rank: op.group.key.partition("@")[0] for op in ops if len(of[op.text]) > 1}
    return tuple(
        _waiting(replace(op, name=f"{op.name} ({own[op.rank]})") if op.rank in own else op)
        for op in ops
    )


def _scope(blame: Blame) -> frozenset[tuple[int, str]]:
    return frozenset(wait.op.key for wait in blame.waits)


def _never_made(view: View, blame: Blame) -> bool:
    """Return whether the awaited rank never made the group."""
    made = view.ranks[blame.ranks[0]].groups.values()
    return blame.waits[0].op.key not in {(group.epoch, group.key) for group in made}


def _loads(view: View, blame: Blame, found: Absence) -> bool:
    """Return whether the rank may be loading libraries with the GIL held, as during a group's first
    op in the first step."""
    op, process = blame.waits[0].op, view.ranks[blame.ranks[0]]
    first_op = not op.p2p and not op.seq and not view.visible(process, "step")
    return found.doing == "gil" and (op.op.op == "init_process_group" or first_op)


def _in_op_of_all(graph: WaitGraph, blame: Blame) -> bool:
    """Return whether the culprits are in an op that all its ranks have issued."""
    return {op.rank for ops in graph.issued_by_all for op in ops} >= set(blame.ranks)


def _patience(view: View, blame: Blame, found: Absence, loads: bool) -> float:
    """Return how long this rank may take before it is reported, in ns; longer at start-up, as long
    as it works."""
    now = seen(view, blame.ranks[0])
    # An idle rank in an op may wait for a message on its way.
    works = not found.idle or (now.in_op and found.doing != "device")
    usual = max(
        patience_ns(view) * (now.slowdown if works else 1), activity_ns(view, now.rank, found)
    )
    starting = loads or any(wait.op.call and not wait.op.at_store for wait in blame.waits)
    return max(usual, START_NS * now.slowdown) if starting and not found.idle else usual


def patience_ns(view: View) -> int:
    """Return how long a rank may take before a wait for it is reported, in ns: at least a typical
    step, within limits."""
    steps = []
    for process in view.ranks.values():
        table, visible = view.rows(process, "step")
        part = slice(max(0, visible - _STEPS), visible)
        steps += (table.col("t1_ns")[part] - table.col("t0_ns")[part]).tolist()
    typical = int(median(steps)) if steps else 0
    return max(PATIENCE_NS, min(typical, LONGEST_PATIENCE_NS))


def _unusual(view: View, blame: Blame) -> bool:
    """Return whether no earlier wait in that group, or for that rank, was nearly as long."""
    op, rank = blame.waits[0].op, blame.ranks[0]
    before: list[int | None] = [
        row.skew_ns for row in collectives(view) if row.key == op.key and row.verdict == "matched"
    ]
    if op.p2p:
        edge = (op.rank, rank) if op.send else (rank, op.rank)
        messages = p2p_between(view, *edge)
        before = [row.waited_ns for row in messages if (row.src, row.dst) == edge]
    known = [ns for ns in before if ns is not None]
    waited = view.t_ns - blame.since_ns
    least = max(EARLY_NS, patience_ns(view))
    return len(known) >= LEAST_BEFORE and waited >= max(least, UNUSUAL * max(known))


def _waits_soon(view: View, rank: int) -> bool:
    """Return whether the rank stands in an op itself, but its peers in messages were active less
    than PATIENCE_NS ago, so that its own wait is known only in a moment."""
    process, now = view.ranks[rank], seen(view, rank)
    if not now.in_op:
        return False
    state = states(view).get(process.proc, {})
    since = fields.integer(state, "open_since_ns", 0) if state.get("open") else 0
    peers = {op.peer for op in open_ops(view, rank, process) if op.p2p and op.peer in view.ranks}
    since = max([since, *(seen(view, peer).moved_ns for peer in peers)])
    return view.t_ns - since < PATIENCE_NS + STATE_NS


def _just_ended(view: View, rank: int) -> bool:
    end = view.proc_end(view.ranks[rank])
    return end is not None and view.t_ns - end[0] < exits.ENDED_NS


def _gave_up(view: View, blame: Blame) -> bool:
    """Return whether a waiting rank then ended by a timeout, an abort or a lost connection, rather
    than by a request."""
    if any(exits.aborted_after(view.ranks[wait.rank], wait.op.since_ns) for wait in blame.waits):
        return True
    failures = (f for wait in blame.waits for f in view.ranks[wait.rank].failures)
    return any(exits.lost_peer(failure) for failure in failures)


# -- messages to the wrong rank


def _taker(view: View, graph: WaitGraph, blame: Blame) -> Wait | None:
    """Return another rank's wait for a message of the waiting rank, whose own message names a
    third. None if messages went that way before: in a pipeline both may wait if a rank is late."""
    op = blame.waits[0].op
    edge = (op.rank, op.peer) if op.send else (op.peer, op.rank)
    if op.p2p and any(
        (row.src, row.dst) == edge and row.verdict == "matched" for row in p2p_between(view, *edge)
    ):
        return None
    return next(
        (wait for wait in graph.waits
         if op.p2p and wait.op.p2p and wait.op.send != op.send and wait.missing == (op.rank,)
         and wait.rank not in blame.ranks and wait.op.key == op.key),
        None,
    )  # fmt: skip


def _first_ns(view: View, blame: Blame) -> float:
    """Return how long the first message between two ranks may wait, in ns; longer if the peer
    works."""
    now = seen(view, blame.ranks[0])
    return (START_NS if (now.cpu or 0) >= IDLE_CORES else PATIENCE_NS) * now.slowdown


def _misaddressed(view: View, blame: Blame, other: PendingOp, over: int | None) -> Candidate:
    op = blame.waits[0].op
    return Candidate(
        kind="unpaired-send" if op.send else "unpaired-recv", culprits=(op.rank,),
        ranks=tuple(sorted((op.rank, other.rank))), group=op.name, t_ns=op.since_ns,
        where=whole_place(seen(view, op.rank).frames), scope=_scope(blame),
        evidence=Evidence(op.since_ns + INTO_NS, op.rank, "timeline", op=op.text),
        facts=kinds.Misaddressed(
            blame.ranks, _never_made(view, blame), over is not None, _waiting(op), op.send,
            other.rank, _places(view, (op.rank, other.rank)),
        ),
    )  # fmt: skip


def _places(view: View, ranks: Sequence[int]) -> tuple[Place, ...]:
    """Return (rank, place where it stands) of a few ranks."""
    at = ((rank, called_place(seen(view, rank).frames)) for rank in ranks[:_MAX_PLACES])
    return tuple((rank, where) for rank, where in at if where)


# -- deadlocks


def _deadlock(view: View, graph: WaitGraph, blame: Blame, over: int | None) -> Candidate:
    """Return the candidate for ranks that wait for each other, each with its op."""
    ops = {rank: next(w.op for w in blame.waits if w.rank == rank) for rank in blame.ranks}
    kind, culprits = _name(blame, ops)
    held = ((rank, seen(view, rank)) for rank in blame.ranks if kind == "deadlock")
    locks = tuple((rank, now.lock) for rank, now in held if now.in_lock)[:1]
    culprits = blame.ranks if locks else culprits  # either thread may take the lock first
    odd: tuple[int, ...] = ()
    if kind != "p2p-tag-mismatch" and len(culprits) > 1 and not locks:
        odd = odd_one_out(view, culprits)
    others = tuple(r for r in blame.victims if r not in blame.ranks)
    where = (at for r in odd or culprits if (at := whole_place(seen(view, r).frames)))
    tags = [ops[rank].op.tag for rank in culprits] if kind == "p2p-tag-mismatch" else [0, 0]
    facts = kinds.Deadlock(
        blamed=blame.ranks, never_made=False, over=over is not None, of=kind,
        sure=not set(blame.ranks) & set(graph.unsure), others=others, tags=(tags[0], tags[1]),
        waits=_told_apart(list(ops.values())),
        keys=tuple(sorted({op.op.reduce for op in ops.values() if op.at_store})),
        calls=any(op.call for op in ops.values()), places=_places(view, culprits),
        named=culprits, odd=odd, locks=locks,
    )  # fmt: skip
    first_op, culprits = blame.waits[0].op, odd or culprits
    return Candidate(
        kind=kind, ranks=(*blame.ranks, *others), culprits=culprits, group=first_op.name,
        seq=first_op.seq, where=next(where, None), t_ns=blame.since_ns, scope=_scope(blame),
        evidence=Evidence(blame.since_ns + INTO_NS, culprits[0], "timeline",
                          op=ops[culprits[0]].text),
        facts=facts,
    )  # fmt: skip


def _name(blame: Blame, ops: Mapping[int, PendingOp]) -> tuple[kinds.Cycle, tuple[int, ...]]:
    """Return (kind, culprits). If most ranks of the cycle stand in one op, the others took another
    order and are the culprits; else no rank is told from the others."""
    p2p = [rank for rank, op in ops.items() if op.p2p]
    if crossed := _crossed_tags(ops):
        return "p2p-tag-mismatch", crossed
    if len(p2p) == len(ops):
        return "p2p-cycle", blame.ranks
    if skipped := _skipped(blame):
        return "deadlock", skipped
    by_op: dict[tuple[object, ...], list[int]] = {}
    for rank, op in ops.items():
        one: tuple[object, ...] = (*op.key, op.seq, op.p2p, op.rank if op.p2p else None)
        # calls at the store count on a group of each rank's own: they have the key in common
        by_op.setdefault(("", op.op.reduce) if op.at_store else one, []).append(rank)
    most = max(by_op.values(), key=len)
    if len(p2p) == 1 and ops[p2p[0]].peer in ops and not ops[ops[p2p[0]].peer].p2p:
        op = ops[p2p[0]]
        return "unpaired-send" if op.send else "unpaired-recv", (op.rank, op.peer)
    odd = tuple(sorted(set(blame.ranks) - set(most)))
    return "deadlock", odd if 2 * len(most) > len(ops) else blame.ranks


def _skipped(blame: Blame) -> tuple[int, ...]:
    """Return ranks of the cycle that left out a set-up call which the others make, and stand in an
    op; empty: none."""
    made = [wait for wait in blame.waits if wait.op.call and not wait.op.at_store]
    missing = {rank for wait in made for rank in wait.missing}
    few = bool(made) and 2 * len(missing) <= len(made[0].op.group.ranks)
    return tuple(sorted(missing & set(blame.ranks))) if few else ()


def _crossed_tags(ops: Mapping[int, PendingOp]) -> tuple[int, ...]:
    """Return (sender, receiver) of a message whose sides wait with different tags; or empty."""
    for rank, op in ops.items():
        other = ops.get(op.peer) if op.p2p and op.send else None
        if other is None or not other.p2p or other.send or other.peer != rank:
            continue
        if other.key == op.key and other.op.tag != op.op.tag:
            return rank, op.peer
    return ()


# -- waits that are over


@per_store(lambda view, rank, came_ns, late_ns: (view.ranks[rank].proc, came_ns))
def _absence_then(view: View, rank: int, came_ns: int, late_ns: int) -> Absence:
    """Return the rank's activity towards the end of a wait that is over; looked up only once."""
    return absence(View(view.store, came_ns - late_ns // 4), rank, came_ns - late_ns)


def late(view: View) -> Iterator[Candidate]:
    """Find, per rank, the longest recent wait for it that is over, if it was long enough."""
    least = max(LATE_NS, patience_ns(view))
    worst: dict[int, tuple[int, CollectiveRow]] = {}
    for row in collectives(view):
        rank, skew = row.last_rank, row.skew_ns
        if row.verdict != "matched" or rank is None or skew is None or skew < least:
            continue
        if was_held(view, first(row), max(row.issued.values())):
            continue
        if rank not in worst or skew > worst[rank][0]:
            worst[rank] = skew, row
    for rank, (skew, row) in sorted(worst.items(), key=lambda item: -item[1][0])[:MAX_LATE]:
        came = max(row.issued.values())
        then = _absence_then(view, rank, came, skew)
        yield Candidate(
            kind="late-rank", ranks=tuple(a.rank for a in row.arrivals if a.rank != rank),
            culprits=(rank,), group=row.group, seq=row.seq, t_ns=came, first_ns=came - skew,
            where=then.place, evidence=at_row(row, rank),
            facts=kinds.LateRank(skew, Label(f"{row.op} {row.label} #{row.seq}"), then),
        )  # fmt: skip
