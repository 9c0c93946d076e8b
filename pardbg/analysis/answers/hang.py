"""The hang at a cursor, shown first on every page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pardbg.analysis.base.abort_text import crash
from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.findings.arbiter import decided
from pardbg.analysis.findings.ends import ends
from pardbg.analysis.findings.exits import bad_ends
from pardbg.analysis.findings.finding import Finding, Severity
from pardbg.analysis.findings.kinds.absence import GONE
from pardbg.analysis.findings.registry import disagreements, stalls, standstills
from pardbg.analysis.findings.stalls.absences import absence
from pardbg.analysis.findings.stalls.waiting import is_held
from pardbg.analysis.hangs.stacks import place
from pardbg.analysis.hangs.standstill import IDLE_CORES, seen, stall_stacks
from pardbg.analysis.hangs.waitgraph import Blame, inside, wait_graph


@dataclass(frozen=True, slots=True)
class Hang:
    """A hang: ranks that hold others up, as the findings about standstills name them."""

    kind: str
    """Kind of the finding, such as ``missing-rank``."""
    severity: Severity
    culprits: tuple[int, ...]
    waiting: tuple[int, ...]
    op: str
    where: str | None
    """Place in the code of the (first) culprit; None: not known."""
    since_ns: int
    until_ns: int | None
    """Time at which the job failed, in ns; None: it still hangs."""
    text: str


@dataclass(frozen=True, slots=True)
class RankStack:
    """Stack of a rank's main thread at a standstill, or where an exception or a crash ended it."""

    rank: int
    t_ns: int
    frames: tuple[tuple[str, int, str], ...]
    """(file, line, function) of each frame, outermost first."""
    handles: str = ""
    """Exception that the rank is handling at its place; empty: none."""
    is_past: bool = False
    """Whether the rank has ended a step or an action since."""


def hang_view(view: View) -> Hang | None:
    """Return the hang at the cursor, or the one in which the job ended; None while every rank makes
    progress, and while the debugger holds ranks."""
    found, bad = worst_standstill(view), bad_ends(view)
    return None if found is None else _hang(view, found, bad[0][1] if bad else None)


@per_view
def worst_standstill(view: View) -> Finding | None:
    """Return the finding that explains the hang; None: there is no hang."""
    ended, bad = view.run_end, bad_ends(view)
    if ended is not None and not ended[1]:
        return None
    if is_held(view):
        return None
    graph = wait_graph(view)
    if not bad and (ended is not None or not (graph.waits or graph.issued_by_all)):
        return None
    found = [finding for finding in standstills(view) if finding.severity != "info"]
    return min(found, key=lambda f: (f.order[0], f.t_ns), default=None)


def hung(view: View, since_ns: int) -> tuple[Finding, ...]:
    """Return findings about ranks that have stood still since then and will for ever: they wait for
    each other, in an op that all have issued, or for a rank that ended, is stopped or does nothing.
    A rank that works or is in a debugger does not count, nor do ranks that may still start."""
    ranks = set(_hung_ranks(view, since_ns))
    found = decided((*ends(view), *disagreements(view), *stalls(view))) if ranks else ()
    return tuple(
        one for one in found
        if one.severity != "info" and not ranks.isdisjoint((*one.ranks, *one.culprits))
    )  # fmt: skip


def _hung_ranks(view: View, since_ns: int) -> Iterator[int]:
    graph = wait_graph(view)
    for blame in graph.blames:
        hangs = all(_still(view, r) for r in blame.ranks) if blame.cycle else _rests(view, blame)
        if hangs and blame.since_ns <= since_ns:
            yield from (*blame.ranks, *blame.victims)
    for ops in (*graph.issued_by_all, *((op,) for op in graph.met)):
        stand = all(op.since_ns <= since_ns and inside(view, op.rank, [op]) for op in ops)
        if stand and view.ranks.keys() >= {*ops[0].group.ranks}:
            yield from (op.rank for op in ops)


def _still(view: View, rank: int) -> bool:
    now = seen(view, rank)
    return now.in_op or (now.cpu is not None and now.cpu < IDLE_CORES)


def _rests(view: View, blame: Blame) -> bool:
    """Return whether the awaited rank does nothing."""
    found = absence(view, blame.ranks[0], blame.since_ns, blame.waits[0].op.group)
    asleep = found.asleep and found.kind != "in-debugger"
    return asleep or found.doing in (*GONE, "stopped", "device")


def _hang(view: View, finding: Finding, over: int | None) -> Hang:
    since = finding.first_ns if finding.first_ns is not None else finding.t_ns
    culprits = finding.culprits
    where = finding.where
    stack = stall_stacks(view).get(culprits[0]) if culprits else None
    if where is None and stack is not None and stack[0] >= since:
        where = place(stack[1])
    op = finding.evidence.op if finding.evidence is not None else ""
    if not op and finding.group is not None:
        op = finding.group if finding.seq is None else f"{finding.group} #{finding.seq}"
    return Hang(
        kind=finding.kind,
        severity=finding.severity,
        culprits=culprits,
        waiting=tuple(rank for rank in finding.ranks if rank not in culprits),
        op=op,
        where=where,
        since_ns=since,
        until_ns=over,
        text=finding.text,
    )


def rank_stacks(view: View) -> tuple[RankStack, ...]:
    """Return each rank's newest stack: at a standstill, of its main thread's exception, or of its
    crash in C code."""
    found = {
        rank: RankStack(
            rank, t_ns, frames, handles, t_ns < view.newest_ns(view.ranks[rank], ("step", "action"))
        )
        for rank, (t_ns, frames, *_, handles) in stall_stacks(view).items()
        if frames and rank in view.ranks
    }
    for rank, process in view.ranks.items():
        for raised in view.fatal(process):
            if raised.frames and (rank not in found or found[rank].t_ns <= raised.t_ns):
                found[rank] = RankStack(rank, raised.t_ns, raised.origin)
        end = view.proc_end(process)
        if end and end[1] == "killed" and (ended_in := crash(view, rank, end[0])) is not None:
            found[rank] = RankStack(rank, end[0], ended_in.frames)
    return tuple(found[rank] for rank in sorted(found))
