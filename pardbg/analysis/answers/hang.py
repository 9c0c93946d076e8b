"""The hang at a cursor, which every page shows first."""

from __future__ import annotations

from dataclasses import dataclass

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.control import control_view
from pardbg.analysis.findings.arbiter import decided
from pardbg.analysis.findings.ends import ends
from pardbg.analysis.findings.exits import bad_ends
from pardbg.analysis.findings.finding import Facts, Finding, Severity
from pardbg.analysis.findings.kinds.stall_kinds import Deadlock, Misaddressed, MissingRank, StuckOp
from pardbg.analysis.findings.registry import disagreements, stalls, standstills
from pardbg.analysis.hangs.stacks import place
from pardbg.analysis.hangs.standstill import stall_stacks
from pardbg.analysis.hangs.waitgraph import wait_graph


@dataclass(frozen=True, slots=True)
class Hang:
    """A hang: the ranks that hold others up, as found by the findings about standstills."""

    kind: str
    """Kind of the finding."""
    severity: Severity
    culprits: tuple[int, ...]
    waiting: tuple[int, ...]
    op: str
    where: str | None
    """Place in the code where the (first) culprit stands."""
    since_ns: int
    until_ns: int | None
    """When the job fell apart; None: it still hangs."""
    text: str


@dataclass(frozen=True, slots=True)
class RankStack:
    """A rank's main thread at a standstill."""

    rank: int
    t_ns: int
    frames: tuple[tuple[str, int, str], ...]
    """(file, line, function), outermost first."""


def hang_view(view: View) -> Hang | None:
    """Return the hang at the cursor, or the one in which the job ended. None while every rank makes
    progress, and while the debugger holds ranks."""
    ended, bad = view.run_end, bad_ends(view)
    if ended is not None and not ended[1]:
        return None
    if control_view(view).mode != "running":
        return None
    if not bad and (ended is not None or not _stands(view)):
        return None
    found = [finding for finding in standstills(view) if finding.severity != "info"]
    if not found:
        return None
    worst = min(found, key=lambda f: (f.order[0], f.t_ns))
    over = bad[0][1] if bad else None
    return _hang(view, worst, over)


def hung(view: View) -> tuple[Finding, ...]:
    """Return what keeps ranks from ever getting on: errors of their order or ends, and waits in
    which everybody does nothing. A rank that works, or is in a debugger, only takes its time."""
    found = decided((*ends(view), *disagreements(view), *stalls(view)))
    return tuple(one for one in found if one.severity == "error" or _rests(one.facts))


def _rests(facts: Facts | None) -> bool:
    if isinstance(facts, MissingRank):
        idle = (one.asleep or one.doing == "device" for one in facts.absences)
        return all(idle) and facts.absences[0].kind != "in-debugger"
    return isinstance(facts, Deadlock | Misaddressed | StuckOp)


def _stands(view: View) -> bool:
    graph = wait_graph(view)
    return bool(graph.waits or graph.issued_by_all)


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
    """Return each rank's newest stack taken at a standstill, up to the cursor."""
    return tuple(
        RankStack(rank, t_ns, frames)
        for rank, (t_ns, frames, *_) in sorted(stall_stacks(view).items())
        if frames and rank in view.ranks
    )
