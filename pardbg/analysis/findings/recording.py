"""Finds gaps in the data, exhausted limits, restarts, several jobs in one, clock faults."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Literal

import pardbg.analysis.findings.kinds.recording_kinds as kinds
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.run import lines
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.findings.exits import SEEN_LATE_NS, lost_peer
from pardbg.analysis.findings.finding import Candidate
from pardbg.analysis.hangs.stacks import place
from pardbg.analysis.hangs.standstill import lost_nodes
from pardbg.events import fields
from pardbg.events.control_facts import Fact, HubRestarted, Limit, ProcessLost
from pardbg.store.process import Process
from pardbg_agent import wire

_LINES: Final = 2000
CLOCK_NS: Final = 1_000_000
"""Clock uncertainty worth a note, in ns: about the length of a small collective."""
_TOLD: Final = (-signal.SIGTERM, 128 + signal.SIGTERM)
_LOST: Final = {
    "hub": "the hub", "launcher": "the launcher",
    "guardian": "the launcher's guardian", "keeper": "the run's keeper", "owner": "`pardbg run`",
}  # fmt: skip
_LIMITS: Final[tuple[Literal["processes", "definitions"], ...]] = ("processes", "definitions")


def dropped(view: View) -> Iterable[Candidate]:
    """Find records that were lost on their way or exceed what is kept."""
    for rank, process in view.ranks.items():
        if lost := process.lost(view.t_ns):
            yield Candidate(
                kind="records-dropped",
                t_ns=view.t_ns,
                ranks=(rank,),
                facts=kinds.RecordsDropped(lost),
            )
    if over := view.store.over_limit:
        yield Candidate(kind="records-dropped", t_ns=view.t_ns, facts=kinds.RecordsDropped(over))


def limits(view: View) -> Iterable[Candidate]:
    """Find data that a store had no room for, and lives of which only the ends are kept."""
    if refused := view.store.refused:
        facts = kinds.LimitReached(tuple(sorted(refused.items())))
        yield Candidate(kind="limit-reached", t_ns=view.t_ns, facts=facts)
    if number := view.store.past.num_lives:
        yield Candidate(
            kind="lives-forgotten", t_ns=view.begin_ns, facts=kinds.LivesForgotten(number)
        )


def missing_begin(view: View) -> Iterable[Candidate]:
    """Find ranks whose first records are missing: a viewer that joined late, a truncated file."""
    missed = {rank: p.missed_before for rank, p in view.ranks.items() if p.missed_before}
    if missed:
        yield Candidate(
            kind="records-missing", t_ns=view.begin_ns, ranks=tuple(missed),
            facts=kinds.RecordsMissing(max(missed.values())),
        )  # fmt: skip


def unrecorded_ranks(view: View) -> Iterable[Candidate]:
    """Find ranks in groups that sent no record though ops with them are over. In a group over
    several jobs (torchft), ranks of other jobs are left out."""
    members = {r for (e, _), g in view.store.groups.items() if e == view.epoch for r in g.ranks}
    size = max((process.world_size or 0 for process in view.ranks.values()), default=0)
    others = sorted(members - view.ranks.keys() - view.elsewhere)
    unseen = tuple(rank for rank in others if not size or rank < size)
    if not unseen or not view.ranks:
        return
    if view.run_end is not None or any(_passed(row, unseen) for row in collectives(view)):
        yield Candidate(
            kind="unseen-rank", ranks=unseen, t_ns=view.begin_ns, facts=kinds.RankUnrecorded()
        )


def _passed(row: CollectiveRow, unseen: tuple[int, ...]) -> bool:
    """Return whether the op is over on all other ranks: the unseen ones took part in it."""
    others = [a for a in row.arrivals if a.rank not in unseen]
    return len(others) < len(row.arrivals) and all(a.completed_ns is not None for a in others)


def unknown_groups(view: View) -> Iterable[Candidate]:
    """Find ops on groups whose definition never came."""
    ranks = tuple(rank for rank, process in view.ranks.items() if process.undefined_groups)
    if ranks:
        yield Candidate(
            kind="unknown-group", t_ns=view.begin_ns, ranks=ranks, facts=kinds.UnknownGroup()
        )


def hook_errors(view: View) -> Iterable[Candidate]:
    """Find hooks of the agent that failed and are switched off."""
    for rank, process in view.ranks.items():
        for t_ns, where, text in process.errors:
            if t_ns <= view.t_ns:
                yield Candidate(
                    kind="hook-error", t_ns=t_ns, ranks=(rank,), where=where or None,
                    facts=kinds.HookError(where, text),
                )  # fmt: skip


def unreadable(view: View) -> Iterable[Candidate]:
    """Find data of another version, and truncated files."""
    if unknown := view.store.unknown:
        yield Candidate(kind="unknown-data", t_ns=view.t_ns, facts=kinds.UnknownData(unknown))
    if view.store.truncated:
        yield Candidate(kind="truncated", t_ns=view.t_ns, facts=kinds.Truncated())


# -- pardbg's own processes


def recorder_lost(view: View) -> Iterable[Candidate]:
    """Find processes of pardbg that were killed; the job runs on, the recording may have gaps."""
    controls = view.store.controls.last(view.now_ns, len(view.store.controls))
    known = ((t_ns, _LOST.get(_lost_process(event.fact))) for t_ns, event in controls)
    lost = [(t_ns, name) for t_ns, name in known if name is not None]
    if lost:
        counts = Counter(name for _, name in lost)
        facts = kinds.RecorderLost(tuple(counts.items()))
        yield Candidate(kind="recorder-lost", t_ns=lost[-1][0], facts=facts)


def _lost_process(fact: Fact | None) -> str:
    """Return the name of the process of pardbg that was killed; empty: none."""
    if isinstance(fact, HubRestarted):
        return "hub"
    return fact.what if isinstance(fact, ProcessLost) else ""


def recorder_limits(view: View) -> Iterable[Candidate]:
    """Find processes and definitions that the hub left out because it was at its limit."""
    controls = view.store.controls.last(view.now_ns, len(view.store.controls))
    reached = [(t_ns, e.fact) for t_ns, e in controls if isinstance(e.fact, Limit)]
    for of in _LIMITS:
        limits = [(t_ns, limit) for t_ns, limit in reached if limit.what == of]
        if limits:
            t_ns, newest = limits[-1]
            facts = kinds.RecorderLimit(of, newest.limit, sum(limit.num for _, limit in limits))
            yield Candidate(kind="recorder-limit", t_ns=t_ns, facts=facts)


# -- the job


def nodes_lost(view: View) -> Iterable[Candidate]:
    """Find silent nodes of the job, until the hub hears from them again."""
    for t_ns, node in lost_nodes(view):
        ranks, facts = node.ranks, kinds.NodeLost((node.node,))
        yield Candidate(kind="node-lost", t_ns=t_ns, ranks=ranks, culprits=ranks, facts=facts)


def restarts(view: View) -> Iterable[Candidate]:
    """Find restarts of the workers by torchelastic; only the newest round is shown."""
    number = max(map(_own, view.ranks.values()), default=0)
    if number <= 0:
        return
    begun = [p.started_ns for p in view.ranks.values() if p.started_ns is not None]
    ends = (_life_end(view, epoch) for epoch in range(max(0, view.epoch - 3), view.epoch))
    lives = [end for end in ends if end is not None]
    if view.run_end is not None and all(_active(view, p)[0] < 0 for p in view.ranks.values()):
        lives.append(kinds.LifeEnd(view.epoch + 1, None, "", None, None))  # came to no group
    yield Candidate(
        kind="restarted", ranks=tuple(view.ranks), t_ns=min(begun, default=0),
        facts=kinds.Restarted(number, tuple(lives)),
    )  # fmt: skip


def _life_end(view: View, epoch: int) -> kinds.LifeEnd | None:
    """Return the first failure of a life, as reported by its ranks or seen by the hub; else its
    first lost connection; None: not known. SIGTERM does not count: launchers end a life with it for
    any reason."""
    processes = [p for p in view.store.procs.values() if p.epoch == epoch]
    raised = [
        (lost_peer(failure), failure.t_ns, process.rank, failure)
        for process in processes
        for failure in process.failures
        if failure.thread == "MainThread"
    ]
    lost, _, rank, failure = min(raised, key=lambda found: found[:2], default=(True, 0, 0, None))
    failed = {rank for _, _, rank, _ in raised}
    codes = ((p, p.exit_code or 0) for p in processes)
    ended = [p for p, code in codes
             if code not in _TOLD and (code < 0 or (code and p.rank not in failed))]  # fmt: skip
    times = [(p.ends[0][0] if p.ends else 0, p.rank, p.exit_code) for p in ended]
    if lost and ended:
        t_ns, rank, code = min(times, key=lambda end: end[0])
        found = kinds.LifeEnd(epoch + 1, rank, "", None, code)
    elif failure is None:
        return None
    else:
        t_ns, at = failure.t_ns, place(failure.origin)
        found = kinds.LifeEnd(epoch + 1, rank, failure.text, at, None, failure.cause)
    others = [(at_ns, of) for at_ns, of, _ in times if of not in failed]
    others += [(at_ns, of) for follows, at_ns, of, _ in raised if not follows]
    beside = {of for at_ns, of in others if abs(at_ns - t_ns) <= SEEN_LATE_NS and of is not None}
    return replace(found, beside=tuple(sorted(beside - {rank})))


def remote_calls(view: View) -> Iterable[Candidate]:
    """Find workers of torch.distributed.rpc: the contents of their calls pass no hook."""
    if wire.NOTE_RPC in view.store.notes:
        yield Candidate(
            kind="rpc", t_ns=view.begin_ns, ranks=tuple(view.ranks), facts=kinds.RemoteCalls()
        )


def several_jobs(view: View) -> Iterable[Candidate]:
    """Find rank numbers held by two processes of one epoch at the same time: several jobs."""
    twice: set[int] = set()
    jobs: set[str] = set()
    for process in view.store.procs.values():
        rank = process.rank
        shown = None if rank is None else view.ranks.get(rank)
        if rank is None or shown is None or shown is process or _own(shown) != _own(process):
            continue
        (last, begun), (other_last, other_begun) = _active(view, shown), _active(view, process)
        if begun <= other_last and other_begun <= last:  # at the same time
            twice.add(rank)
            names = (fields.text(p.facts, "job").strip(":") for p in (shown, process))
            jobs |= {name for name in names if name}
    if twice:
        facts = kinds.SeveralJobs(tuple(sorted(jobs)))
        yield Candidate(
            kind="several-jobs", t_ns=view.t_ns, ranks=tuple(sorted(twice)), facts=facts
        )


def _own(process: Process) -> int:
    """Return torchelastic's count of restarts of a process."""
    return fields.integer(process.facts, "epoch", 0)


def _active(view: View, process: Process) -> tuple[int, int]:
    """Return (time of the process's last collective, its start) in ns; (-1, start) without any."""
    table, visible = view.rows(process, "issue")
    last = int(table.col("t0_ns")[visible - 1]) if visible else -1
    return last, process.started_ns or 0


def no_ranks(view: View) -> Iterable[Candidate]:
    """Find a run that is over and had no rank."""
    if view.run_end is not None and not view.ranks:
        yield Candidate(
            kind="no-ranks", t_ns=view.run_end[0], facts=kinds.NoRanks(_output_cause(view))
        )


def _output_cause(view: View) -> Literal["no space", "raised", ""]:
    for line in lines(view.store, view.t_ns, _LINES):
        if "No space left on device" in line.text:
            return "no space"
        if line.text.startswith("Traceback"):
            return "raised"
    return ""


def clocks(view: View) -> Iterable[Candidate]:
    """Find ranks whose clock is too uncertain to order their ops against other ranks'."""
    several = len({process.host for process in view.ranks.values()}) > 1
    errors = {rank: p.clocks.at(view.t_ns).error_ns for rank, p in view.ranks.items()}
    unknown = tuple(rank for rank, error in errors.items() if error is None)
    if several and unknown:
        yield Candidate(
            kind="clock-uncertain", t_ns=view.t_ns, ranks=unknown, facts=kinds.ClockUnaligned()
        )
    yield from _jumps(view)
    worst = max((error or 0 for error in errors.values()), default=0)
    if worst >= CLOCK_NS:
        ranks = tuple(rank for rank, error in errors.items() if (error or 0) >= CLOCK_NS)
        facts = kinds.ClockImprecise(worst)
        yield Candidate(kind="clock-uncertain", t_ns=view.t_ns, ranks=ranks, facts=facts)


def _jumps(view: View) -> Iterable[Candidate]:
    """Find clocks that jumped ahead or back; the exact moment of a jump is not known."""
    for rank, process in view.ranks.items():
        jumps = [jump for jump in process.clocks.jumps if jump.t_ns <= view.t_ns]
        if jumps:
            last = jumps[-1]
            yield Candidate(
                kind="clock-uncertain", ranks=(rank,), t_ns=last.t_ns, first_ns=jumps[0].since_ns,
                facts=kinds.ClockJump(last.by_ns, last.t_ns - last.since_ns, len(jumps) - 1),
            )  # fmt: skip
