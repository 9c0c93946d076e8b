"""Ops that all ranks issued and that do not end; ranks of which nothing was ever heard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.reasons import START_LOAD, more_time, reason
from pardbg.analysis.findings.shared import Evidence, Finding, ended
from pardbg.analysis.hangs.stacks import place
from pardbg.analysis.hangs.standstill import IDLE_CORES, seen
from pardbg.analysis.hangs.waitgraph import PendingOp
from pardbg.events.control_facts import Rendezvous
from pardbg.words import agreed, duration, ranks_text, waits_text

STUCK_NS: Final = 5_000_000_000
"""Minimum time that an op issued by all its ranks has not ended."""
SET_UP_NS: Final = 12_000_000_000
"""... a call of the set-up, while a rank in it works or stands ready: hosts are busy then."""
_EVENTS: Final = 64
_TRANSPORT_ADVICE: Final = (
    "No rank is missing, so it is the transport: the network between these ranks, a firewall, a "
    "backend that waits. A large transfer may also just take this long."
)
_SET_UP_ADVICE: Final = (
    "No rank is missing, so ranks cannot reach each other: check MASTER_ADDR and MASTER_PORT, the "
    "firewall, the interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)."
)


def first_place(view: View, ranks: Sequence[int]) -> str | None:
    """Return the first of them whose place in the code is known."""
    return next((at for r in ranks if (at := place(seen(view, r).frames))), None)


def _patience(view: View, ops: Sequence[PendingOp]) -> float:
    ranks = [seen(view, op.rank) for op in ops]
    works = any((now.cpu or 0) >= IDLE_CORES for now in ranks)
    if not ops[0].call:
        return STUCK_NS * max(map(more_time, ranks))
    return (SET_UP_NS if works else STUCK_NS) * max(more_time(now, START_LOAD) for now in ranks)


def stuck(view: View, ops: Sequence[PendingOp], over: int | None) -> Iterable[Finding]:
    """Find a collective that each rank issued and that does not end."""
    since = max(op.since_ns for op in ops)
    op = ops[0]
    if view.t_ns - since < _patience(view, ops):
        return
    unseen = tuple(rank for rank in op.group.ranks if rank not in view.ranks)
    if unseen:
        yield _unseen(view, op, tuple(sorted(o.rank for o in ops)), unseen, since)
        return
    broken = tuple(r for r in op.group.ranks if ended(view, r) or seen(view, r).stopped)
    waiting = tuple(sorted(op.rank for op in ops))
    why = reason(view, broken[0]).text if broken else ""
    for_whom = f"; {ranks_text(broken)} {agreed(why, broken)}" if broken else ""
    yield Finding(
        kind="stuck-op",
        severity="error" if broken else "warning",
        ranks=waiting,
        culprits=broken,
        group=op.name,
        seq=op.seq,
        where=first_place(view, waiting),
        t_ns=since,
        text=f"{op.text} has been issued by every rank and does not end on {ranks_text(waiting)} "
        f"for {duration((over or view.t_ns) - since)}{for_whom}.",
        advice=_SET_UP_ADVICE if op.call else _TRANSPORT_ADVICE,
        evidence=Evidence(since, waiting[0], "collectives", op=op.text),
    )


def _unseen(
    view: View, op: PendingOp, waiting: tuple[int, ...], unseen: tuple[int, ...], since: int
) -> Finding:
    """It is not known whether these ranks have issued it, unless the job's store says so."""
    absent: tuple[int, ...] = ()
    said, advice = "", _UNSEEN_ADVICE
    came = _came(view) if op.op.op == "init_process_group" else None
    if came is not None:
        absent = tuple(rank for rank in unseen if rank not in came)
        of, (no, yes) = absent or unseen, _AT_STORE
        said = f" At the job's store {ranks_text(of)} {agreed('has', of)}"
        said, advice = (f"{said} not been, either.", no) if absent else (f"{said} been.", yes)
    return Finding(
        kind="unseen-rank",
        severity="warning",
        ranks=waiting,
        culprits=absent,
        group=op.name,
        seq=op.seq,
        t_ns=since,
        text=f"{ranks_text(waiting)} {waits_text(waiting)} {duration(view.t_ns - since)} in "
        f"{op.text}. Nothing is known of {ranks_text(unseen)} of that group: no record has come."
        f"{said}",
        advice=advice,
        evidence=Evidence(since, waiting[0], "collectives", op=op.text),
    )


_UNSEEN_ADVICE: Final = (
    "It may not have started, or runs without the agent: see `pardbg doctor` there."
)
_AT_STORE: Final = (
    "It has not started, or is still before init_process_group: look at its launcher and its node, "
    "and whether it finds MASTER_ADDR and MASTER_PORT.",
    "It runs without the agent: see `pardbg doctor` there. What it does instead is not seen.",
)
"""Advice where ranks that nothing is known of were not at the job's store, and where they were."""


def _came(view: View) -> frozenset[int] | None:
    """Ranks that had left their address at the job's store when the hub asked it last."""
    events = view.store.controls.last(view.t_ns, _EVENTS)
    came = [event.fact.came for _, event in events if isinstance(event.fact, Rendezvous)]
    return frozenset(came[-1]) if came else None
