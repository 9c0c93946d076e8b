"""Finds ops that all ranks issued or calls of one rank that do not end; ranks never heard of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import Final

import pardbg.analysis.findings.kinds.stall_kinds as kinds
from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.exits import any_timed_out, ended, left_ns
from pardbg.analysis.findings.finding import Candidate, Evidence, Label
from pardbg.analysis.findings.stalls.absences import absence, other_threads
from pardbg.analysis.hangs.blocking_calls import Blocking, Sample, samples
from pardbg.analysis.hangs.stacks import place
from pardbg.analysis.hangs.standstill import IDLE_CORES, Seen, seen
from pardbg.analysis.hangs.waitgraph import PendingOp, open_ops, wait_graph
from pardbg.events.control_facts import Rendezvous
from pardbg.store.definitions import Frame

STUCK_NS: Final = 5_000_000_000
"""Minimum time that an op issued by all its ranks has not ended, in ns."""
SET_UP_NS: Final = 12_000_000_000
"""Minimum time for a set-up call while a rank in it works or waits for a core, in ns."""
IDLE_NS: Final = 4_000_000_000
"""Minimum time that a call of a single rank stands still and uses no CPU, in ns."""
BUSY_NS: Final = 60_000_000_000
"""Minimum time for a call of a single rank that works, in ns."""
REMOTE_NS: Final = 10_000_000_000
"""Minimum time for an RPC to another worker while no rank does anything, in ns."""
BEHIND_NS: Final = 10_000_000_000
"""Minimum time that a rank stands alone after all others have ended, in ns."""
LOCK_NS: Final = 10_000_000_000
"""Minimum time that all ranks wait for lock files that no process has open, in ns."""
APART: Final = 0.2
"""Maximum difference in cores used by two ranks of which neither computes while RPC polls."""
POLLING: Final = 0.6
"""Maximum cores used by a rank that only polls for RPC."""
_INIT: Final = "init_process_group"
_SERVES: Final = "torch/distributed/rpc/internal.py"
_EVENTS: Final = 64
_MAX_CALLS: Final = 8


def stuck_ops(view: View, over: int | None) -> Iterator[Candidate]:
    """Find ops that each of their ranks issued and that do not end."""
    for ops in wait_graph(view).issued_by_all:
        # The other side of a message is among its rank's last activities.
        sent = (seen(view, op.peer).moved_ns for op in ops if op.p2p)
        since = max((*(op.since_ns for op in ops), *sent))
        given_up = over is not None and any_timed_out(view, ops, over)
        if given_up or view.t_ns - since >= _patience(view, ops):
            yield _stuck_op(view, ops, since, over)


def _patience(view: View, ops: Sequence[PendingOp]) -> float:
    ranks = [seen(view, op.rank) for op in ops]
    works = ops[0].call and any((now.cpu or 0) >= IDLE_CORES for now in ranks)
    return (SET_UP_NS if works else STUCK_NS) * max(now.slowdown for now in ranks)


def _stuck_op(view: View, ops: Sequence[PendingOp], since: int, over: int | None) -> Candidate:
    op, waiting = ops[0], tuple(sorted({op.rank for op in ops}))
    unseen = tuple(rank for rank in op.members if rank not in view.ranks)
    stopped = {r for r in op.members if r in view.ranks and seen(view, r).stopped}
    broken = tuple(r for r in op.members if ended(view, r) or r in stopped)
    facts: kinds.StuckOp | kinds.UnseenRank = kinds.StuckOp(
        broken, False, over is not None, Label(op.text), (over or view.t_ns) - since, op.call,
        absence(view, broken[0], since) if broken and not unseen else None,
        bool(op.members or op.call or not op.group.backend),
        op.op.meets,
    )  # fmt: skip
    where = next((at for r in waiting if (at := place(seen(view, r).frames))), None)
    if unseen:
        broken, at_store = _absent(view, op, unseen)
        waited = view.t_ns - since
        facts = kinds.UnseenRank((), False, False, Label(op.text), waited, unseen, at_store)
    return Candidate(
        kind="unseen-rank" if unseen else "stuck-op", ranks=waiting, culprits=broken,
        group=op.name, seq=op.seq, where=None if unseen else where, t_ns=since,
        scope=frozenset([op.key]), evidence=Evidence(since, waiting[0], "collectives", op=op.text),
        facts=facts,
    )  # fmt: skip


def _absent(
    view: View, op: PendingOp, unseen: tuple[int, ...]
) -> tuple[tuple[int, ...], kinds.AtStore]:
    """Return (ranks that have not come to the op, state at the store), by the addresses that ranks
    had left at the job's store when the hub last asked it."""
    events = view.store.controls.last(view.now_ns, _EVENTS)
    asked = [event.fact.came for _, event in events if isinstance(event.fact, Rendezvous)]
    if op.op.op != _INIT or not asked:
        return (), "unknown"
    came = asked[-1]
    absent = tuple(rank for rank in unseen if rank not in came)
    return absent, "absent" if absent else "came"


def stuck_calls(view: View) -> Iterator[Candidate]:
    """Find each rank's oldest call that does not end, except on ranks that wait for others or that
    others wait for."""
    graph = wait_graph(view)
    blamed = {rank for blame in graph.blames for rank in (*blame.ranks, *blame.victims)}
    found = 0
    for op in graph.alone:
        if op.rank in blamed or found >= _MAX_CALLS:
            continue
        if op.asks >= 0:
            yield from _stuck_remote(view, op)
            continue
        now = seen(view, op.rank)
        idle = _is_idle(now) and view.t_ns - max(op.since_ns, now.moved_ns) >= IDLE_NS
        if idle or view.t_ns - op.since_ns >= BUSY_NS:
            found += 1
            yield _stuck_call(view, op, now, idle)


def left_locks(view: View) -> Iterator[Candidate]:
    """Find a lock file that all ranks wait for and no process has open: who made it was killed. A
    rank that does anything else, on whatever host, may have it open, and build."""
    found: dict[int, Sample] = {}
    for rank in view.ranks:
        if not ended(view, rank):
            if not any(map(_waits_for_nobody, islice(samples(view, rank, 0), 1))):
                return  # of most runs the first rank tells, without a look at all of its records
            now = seen(view, rank)
            newest = [*takewhile(_waits_for_nobody, samples(view, rank, now.moved_ns))]
            if not (newest and _is_idle(now)) or view.t_ns - newest[-1].t_ns < LOCK_NS:
                return
            found[rank] = newest[-1]
    if found:
        since = max(one.t_ns for one in found.values())
        of = found[min(found)]
        yield Candidate(
            kind="stuck-call", ranks=tuple(sorted(found)), culprits=(), where=of.place, t_ns=since,
            evidence=Evidence(since, min(found), "timeline", op=of.blocking.file),
            facts=kinds.StuckLock(of.blocking.file, view.t_ns - since),
        )  # fmt: skip


def left_behind(view: View) -> Iterator[Candidate]:
    """Find the only rank that has not ended, if it has stood in a system call since, or has
    computed for long without a record."""
    running = [rank for rank in view.ranks if left_ns(view, rank) is None]
    if len(running) != 1 or len(view.ranks) == 1:
        return
    (rank,), others = running, tuple(one for one in view.ranks if one not in running)
    now, since = seen(view, rank), max(left_ns(view, one) or 0 for one in others)
    newest = next(samples(view, rank, now.moved_ns), None)
    since = max(since, now.moved_ns if newest is None else newest.t_ns)
    blocking, least = (newest.blocking, BEHIND_NS) if newest else (Blocking("busy"), BUSY_NS)
    at = newest.place if newest else place(now.frames)
    if not at or _is_idle(now) != bool(newest) or view.t_ns - since < least:
        return
    if not (now.held or open_ops(view, rank, view.ranks[rank])):
        yield Candidate(
            kind="stuck-call", ranks=(rank,), culprits=(rank,), where=at, t_ns=since,
            evidence=Evidence(since, rank, "timeline"),
            facts=kinds.StuckBehind(
                others, blocking, view.t_ns - since, rank, view.ranks[rank].pid
            ),
        )  # fmt: skip


def _waits_for_nobody(one: Sample) -> bool:
    return one.blocking.call == "lock file" and not one.blocking.does


def _stuck_remote(view: View, op: PendingOp) -> Iterator[Candidate]:
    """Find an RPC to another worker that does not end: its handler stands, and no rank does
    anything. A worker that calls a further one only waits itself."""
    further = any(other.rank == op.asks and other.asks >= 0 for other in wait_graph(view).alone)
    if further or op.asks == op.rank or not _all_stand(view):
        return
    handler = _handler(seen(view, op.asks)) if op.asks in view.ranks else ()
    if handler:
        yield Candidate(
            kind="stuck-call", ranks=(op.rank,), culprits=(op.asks,), where=place(handler),
            t_ns=op.since_ns, evidence=Evidence(op.since_ns, op.asks, "timeline", op=op.text),
            facts=kinds.StuckRemote(Label(op.text), view.t_ns - op.since_ns, op.rank),
        )  # fmt: skip


def _all_stand(view: View) -> bool:
    """Return whether no rank has recorded anything for a while, nor uses more of a core than
    others: RPC threads poll for messages all the time."""
    ranks = [seen(view, rank) for rank in view.ranks if not ended(view, rank)]
    used = [now.cpu for now in ranks if now.cpu is not None]
    alike = len(used) == len(ranks) and max(used) - min(used) <= APART and max(used) <= POLLING
    return alike and all(
        view.t_ns - now.moved_ns >= REMOTE_NS and now.os_state == "S" for now in ranks
    )


def _handler(now: Seen) -> tuple[Frame, ...]:
    """Return the frames of a function that the rank runs for another worker; empty: none."""
    for thread in now.threads:
        for at, (file, _, function) in enumerate(thread.frames):
            if function == "_run_function" and file.endswith(_SERVES):
                return thread.frames[at + 1 :]
    return ()


def _is_idle(now: Seen) -> bool:
    asleep = now.os_state in ("", "S") and now.cpu is not None and now.cpu < IDLE_CORES
    return asleep or now.stopped or now.os_state == "D"


def _stuck_call(view: View, op: PendingOp, now: Seen, idle: bool) -> Candidate:
    return Candidate(
        kind="stuck-call", ranks=(op.rank,), culprits=(op.rank,), where=place(now.frames),
        t_ns=op.since_ns, evidence=Evidence(op.since_ns, op.rank, "timeline", op=op.text),
        facts=kinds.StuckCall(
            op.op.op, Label(op.text), view.t_ns - op.since_ns, idle, op.at_store,
            other_threads(now),
        ),
    )  # fmt: skip
