"""The health of run and recording: gaps in the data, restarts, several jobs in one, clocks."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Final

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.run import lines
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.findings.reasons import NODE_ADVICE, killed_text
from pardbg.analysis.findings.shared import MANY, Evidence, Finding, bad_ends, is_transport
from pardbg.analysis.hangs.stacks import place
from pardbg.analysis.hangs.standstill import lost_nodes
from pardbg.events import fields
from pardbg.store.process import Process
from pardbg.words import agreed, binary_size, count, duration, plural, ranks_text, silent_nodes
from pardbg_agent import wire


def dropped(view: View) -> Iterable[Finding]:
    """Find records that were lost on their way, or beyond what is kept."""
    for rank, process in view.ranks.items():
        lost = process.lost(view.t_ns)
        if lost:
            text = (
                f"{plural(lost, 'record')} of rank {rank} were lost, so its figures have "
                f"gaps. The hub was away or too slow; training was not delayed."
            )
            yield Finding("records-dropped", "warning", view.t_ns, text, ranks=(rank,))
    if view.store.over_limit:
        over = plural(view.store.over_limit, "record")
        text = f"{over} beyond what is kept in memory were left out."
        yield Finding("records-dropped", "warning", view.t_ns, text)


def limits(view: View) -> Iterable[Finding]:
    """Find what had no room any more, and lives of which only their ends are kept."""
    if refused := view.store.refused:
        what = ", ".join(f"{number:,} of {name}" for name, number in sorted(refused.items()))
        text = f"messages that are not shown, because a limit was reached: {what}."
        yield Finding("limit-reached", "warning", view.t_ns, text)
    if number := view.store.past.num_lives:
        text = (
            f"of the first {count(number)} lives only their ends are kept: the job was "
            f"restarted more often than a viewer keeps in full."
        )
        yield Finding("lives-forgotten", "info", view.begin_ns, text)


def begun_late(view: View) -> Iterable[Finding]:
    """Find ranks whose first records are not here: a viewer that joined late, a cut file."""
    missed = {rank: p.missed_before for rank, p in view.ranks.items() if p.missed_before}
    if missed:
        most = max(missed.values())
        text = (
            f"the first {plural(most, 'record')} of {ranks_text(missed)} are missing: "
            f"what came before, and sums over the whole run, are unknown."
        )
        yield Finding("records-missing", "info", view.begin_ns, text, ranks=tuple(missed))


def unseen_ranks(view: View) -> Iterable[Finding]:
    """Ranks that the groups name and that never told anything, though ops with them are over. A
    group of several jobs' ranks (torchft's) has more than this job: those are none of its own."""
    members = {r for (e, _), g in view.store.groups.items() if e == view.epoch for r in g.ranks}
    size = max((process.world_size or 0 for process in view.ranks.values()), default=0)
    others = sorted(members - view.ranks.keys() - view.elsewhere)
    unseen = tuple(rank for rank in others if not size or rank < size)
    if not unseen or not view.ranks:
        return
    if view.run_end is None and not any(_passed(row, unseen) for row in collectives(view)):
        return
    yield Finding(
        kind="unseen-rank",
        severity="warning",
        ranks=unseen,
        t_ns=view.begin_ns,
        text=f"nothing was recorded of {ranks_text(unseen)}: what they did is unknown, and "
        f"figures over ranks leave {agreed('it', unseen)} out.",
        advice="The agent is not in those processes, or their part of the recording is missing: "
        "see `pardbg doctor` there.",
    )


def _passed(row: CollectiveRow, unseen: tuple[int, ...]) -> bool:
    """The op is over on all others, so these ranks did take part in it."""
    others = [a for a in row.arrivals if a.rank not in unseen]
    return len(others) < len(row.arrivals) and all(a.completed_ns is not None for a in others)


def unknown_groups(view: View) -> Iterable[Finding]:
    """Find ops on groups whose definition never came."""
    ranks = tuple(rank for rank, process in view.ranks.items() if process.undefined_groups)
    if ranks:
        text = (
            f"{ranks_text(ranks)} issued ops on groups whose definitions are missing: those "
            f"ops cannot be matched, and whom others wait for there is not known."
        )
        yield Finding("unknown-group", "warning", view.begin_ns, text, ranks=ranks)


def hook_errors(view: View) -> Iterable[Finding]:
    """Hooks of the agent that failed and are off."""
    for rank, process in view.ranks.items():
        for t_ns, where, text in process.errors:
            if t_ns <= view.t_ns:
                text = (
                    f"pardbg's hook {where} failed on rank {rank} and is off: {text}. "
                    f"Training goes on; what this hook shows is missing."
                )
                yield Finding(
                    "hook-error", "warning", t_ns, text, ranks=(rank,), where=where or None
                )


def thread_failures(view: View) -> Iterable[Finding]:
    """Threads of the program that an exception ended while its main thread went on."""
    for rank, process in view.ranks.items():
        for failure in process.failures:
            if failure.thread == "MainThread" or failure.t_ns > view.t_ns:
                continue
            if is_transport(failure.text) and bad_ends(view):
                continue  # it follows from how a rank ended
            where = place(failure.frames)
            yield Finding(
                kind="thread-exception",
                severity="warning",
                ranks=(rank,),
                culprits=(rank,),
                where=where,
                t_ns=failure.t_ns,
                text=f"rank {rank}'s thread {failure.thread} raised {failure.text}"
                f"{f' (at {where})' if where else ''} and ended; the rank continues without it.",
                advice="What waits for this thread will wait forever.",
                evidence=Evidence(failure.t_ns, rank, "timeline"),
            )


def unreadable(view: View) -> Iterable[Finding]:
    """Data of another version, and files that end early."""
    unknown = view.store.unknown
    if unknown:
        text = (
            f"{plural(unknown, 'record')} or messages could not be read by this version; they "
            f"are counted, not shown."
        )
        yield Finding("unknown-data", "info", view.t_ns, text)
    if view.store.truncated:
        text = "the session file ends early: what was recorded up to its last whole chunk is here."
        yield Finding("truncated", "info", view.t_ns, text)


_LINES: Final = 2000
CLOCK_NS: Final = 1_000_000
"""Uncertainty that is worth a line: about as long as a small collective."""


def restarts(view: View) -> Iterable[Finding]:
    """torchelastic started the workers anew: what is shown is the newest round alone."""
    number = max(map(_own, view.ranks.values()), default=0)
    if number <= 0:
        return
    begun = [p.started_ns for p in view.ranks.values() if p.started_ns is not None]
    times = "once" if number == 1 else f"{number} times"
    before = "".join(_ended(view, epoch) for epoch in range(max(0, view.epoch - 3), view.epoch))
    dying = _dying(view)
    yield Finding(
        kind="restarted",
        severity="warning",
        ranks=tuple(view.ranks),
        t_ns=min(begun, default=0),
        text=f"the workers were restarted {times}: what is shown is since then.{before}{dying}",
        advice="The output has what ended them before; `[` `]` and --part show it.",
        evidence=Evidence(min(begun, default=0), None, "output"),
    )


_LOST: Final = {
    "hub_restart": "the hub", "launcher_lost": "the launcher",
    "guardian_lost": "the launcher's guardian", "owner_lost": "`pardbg run`",
}  # fmt: skip


def recorder_lost(view: View) -> Iterable[Finding]:
    """A process of pardbg was killed meanwhile: the job did not notice, the recording may."""
    controls = view.store.controls.last(view.t_ns, len(view.store.controls))
    told = ((t_ns, _LOST.get(fields.text(event, "event"))) for t_ns, event in controls)
    seen = [(t_ns, who) for t_ns, who in told if who is not None]
    if seen:
        counts = {who: [w for _, w in seen].count(who) for _, who in seen}
        times = ", ".join(who if n == 1 else f"{who} {n} times" for who, n in counts.items())
        text = (
            f"While the job ran, pardbg lost {times}: killed. The recording continues, and "
            "missing records are counted (records-missing)."
        )
        yield Finding("recorder-lost", "info", seen[-1][0], text)


def recorder_limits(view: View) -> Iterable[Finding]:
    """What the hub left out because there was too much of it at a time."""
    controls = view.store.controls.last(view.t_ns, len(view.store.controls))
    told = [(t_ns, said) for t_ns, said in controls if fields.text(said, "event") == "limit"]
    for what in ("processes", "definitions"):
        mine = [(t_ns, said) for t_ns, said in told if fields.text(said, "what") == what]
        if mine:
            num = sum(fields.integer(said, "num", 0) for _, said in mine)
            yield _full(what, fields.integer(mine[-1][1], "limit", 0), num, mine[-1][0])


def _full(what: str, limit: int, num: int, t_ns: int) -> Finding:
    if what == "processes":
        text = (
            f"The hub reached its limit of {limit:,} processes at a time: "
            f"{plural(num, 'message')} of further processes were not recorded."
        )
        return Finding("recorder-limit", "warning", t_ns, text)
    text = (
        f"The hub reached its limit of {binary_size(limit)} of definitions for viewers: viewers "
        f"that join later lack {plural(num, 'definition')}. The recording has them."
    )
    return Finding("recorder-limit", "info", t_ns, text)


def nodes_lost(view: View) -> Iterable[Finding]:
    """Nodes of the job that the hub hears nothing of, until they are back."""
    silent = lost_nodes(view)
    if len(silent) >= MANY:
        ranks = sorted({r for _, event in silent for r in fields.integers(event, "ranks")})
        newest = max(t_ns for t_ns, _ in silent)
        numbers = {fields.integer(event, "node", -1) for _, event in silent}
        yield _node_lost(newest, tuple(ranks), silent_nodes(numbers, ranks))
        return
    for t_ns, event in silent:
        yield _node_lost(t_ns, fields.integers(event, "ranks"), fields.text(event, "text"))


def _node_lost(t_ns: int, ranks: tuple[int, ...], text: str) -> Finding:
    return Finding(
        kind="node-lost",
        severity="error",
        t_ns=t_ns,
        text=text,
        advice=NODE_ADVICE,
        ranks=ranks,
        culprits=ranks,
        evidence=Evidence(t_ns, ranks[0] if ranks else None, "overview"),
    )


def _dying(view: View) -> str:
    """The newest life came to no group."""
    if view.run_end is None or any(_active(view, p)[0] >= 0 for p in view.ranks.values()):
        return ""
    return f" Life {view.epoch + 1} ended in its start-up."


def _ended(view: View, epoch: int) -> str:
    """Return what ended a life, as far as its ranks said it or the hub saw it. Lives count from
    1."""
    processes = [p for p in view.store.procs.values() if p.epoch == epoch]
    life = f" Life {epoch + 1}:"
    raised = [
        (failure.t_ns, process.rank, failure)
        for process in processes
        for failure in process.failures
        if failure.thread == "MainThread" and not is_transport(failure.text)
    ]
    if raised:
        _, rank, failure = min(raised, key=lambda found: found[0])
        where = place(failure.frames)
        return f"{life} rank {rank} raised {failure.text}{f' (at {where})' if where else ''}."
    killed = [p for p in processes if (p.exit_code or 0) < 0 and p.exit_code != -signal.SIGTERM]
    if killed:
        first = min(killed, key=lambda process: process.ends[0][0] if process.ends else 0)
        return f"{life} rank {first.rank} {killed_text(first.exit_code)}."
    return ""


def remote_calls(view: View) -> Iterable[Finding]:
    """Workers of torch.distributed.rpc: what their calls carry passes no hook."""
    if wire.NOTE_RPC not in view.store.notes:
        return
    yield Finding(
        kind="rpc",
        severity="info",
        ranks=tuple(view.ranks),
        t_ns=view.begin_ns,
        text="torch.distributed.rpc is in use: its calls are spans of the timeline; what they "
        "carry, who serves them and waits inside them are not covered.",
        advice="`where` and Debug show the stacks of workers that wait.",
    )


def several_jobs(view: View) -> Iterable[Finding]:
    """One rank number in two processes of one epoch: of different jobs, or at the same time."""
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
            jobs |= {name for p in (shown, process) if (name := fields.text(p.facts, "job"))}
    if not twice:
        return
    ranks = tuple(sorted(twice))
    which = f" ({', '.join(sorted(jobs)[:4])})" if len(jobs) > 1 else ""
    yield Finding(
        kind="several-jobs",
        severity="warning",
        ranks=ranks,
        t_ns=view.t_ns,
        text=f"{ranks_text(ranks)} {agreed('is', ranks)} more than one process at a "
        f"time: the command runs several jobs{which}, and what is shown is one of them.",
        advice="`[` `]` and --part show the others.",
    )


def _own(process: Process) -> int:
    """torchelastic's count of restarts."""
    return fields.integer(process.facts, "epoch", 0)


def _active(view: View, process: Process) -> tuple[int, int]:
    """(time of its last collective, its start); (-1, start) without any."""
    table, visible = view.rows(process, "issue")
    last = int(table.col("t0_ns")[visible - 1]) if visible else -1
    return last, process.started_ns or 0


def nothing_seen(view: View) -> Iterable[Finding]:
    """Find that the run is over with no rank in it."""
    if view.run_end is not None and not view.ranks:
        text = (
            "no rank was seen: no process of the job formed a torch.distributed group with "
            "the agent in it."
        )
        yield Finding("no-ranks", "warning", view.run_end[0], text, advice=_unseen_advice(view))


def _unseen_advice(view: View) -> str:
    """By what the job said."""
    for line in lines(view.store, view.t_ns, _LINES):
        if "No space left on device" in line.text:
            return "Shared memory or the disk is full: make room in /dev/shm, or set PARDBG_RING."
        if line.text.startswith("Traceback"):
            return "A process raised before it was a rank: the output has it."
    return (
        "It starts through the environment: not in `python -S`, not where the environment is "
        "emptied (`env -i`, sudo, a container), nor in `-I` and `-E` where pardbg-agent is not "
        "installed in that Python; see `pardbg doctor`."
    )


def clocks(view: View) -> Iterable[Finding]:
    """Find ranks whose clock is not known well enough to order their ops against others'."""
    several = len({process.host for process in view.ranks.values()}) > 1
    errors = {rank: p.clocks.at(view.t_ns).error_ns for rank, p in view.ranks.items()}
    unknown = tuple(rank for rank, error in errors.items() if error is None)
    if several and unknown:
        text = (
            f"the clock of {ranks_text(unknown)} has not been aligned: the order of "
            f"{agreed('its', unknown)} records against other hosts' is not known."
        )
        yield Finding("clock-uncertain", "warning", view.t_ns, text, ranks=unknown)
    yield from _jumps(view)
    worst = max((error or 0 for error in errors.values()), default=0)
    if worst >= CLOCK_NS:
        ranks = tuple(rank for rank, error in errors.items() if (error or 0) >= CLOCK_NS)
        text = (
            f"the clock of {ranks_text(ranks)} is known to ±{duration(worst)} only: "
            f"skews and waits below that say nothing."
        )
        yield Finding("clock-uncertain", "info", view.t_ns, text, ranks=ranks)


def _jumps(view: View) -> Iterable[Finding]:
    """Clocks that went ahead or back by themselves: when exactly is not known."""
    for rank, process in view.ranks.items():
        jumps = [jump for jump in process.clocks.jumps if jump.t_ns <= view.t_ns]
        if not jumps:
            continue
        last = jumps[-1]
        way = "ahead" if last.by_ns > 0 else "back"
        others = f"; it had jumped {len(jumps) - 1} times before" if jumps[1:] else ""
        yield Finding(
            kind="clock-uncertain",
            severity="warning",
            ranks=(rank,),
            t_ns=last.t_ns,
            first_ns=jumps[0].since_ns,
            text=f"the clock of rank {rank} jumped {way} by {duration(abs(last.by_ns))}, within "
            f"the {duration(last.t_ns - last.since_ns)} before{others}: where its records of "
            f"that time belong is not known.",
            advice="A machine that was suspended, or a container that was restored.",
            evidence=Evidence(last.t_ns, rank, "timeline"),
        )
