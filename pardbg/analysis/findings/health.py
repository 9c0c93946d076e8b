"""Gaps in the data itself: dropped or unreadable records, failed hooks."""

from __future__ import annotations

from collections.abc import Iterable

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.matched import CollectiveRow
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.findings.shared import Evidence, Finding
from pardbg.analysis.hangs.stacks import place
from pardbg.words import plural, ranks_text


def dropped(view: View) -> Iterable[Finding]:
    """Records that were lost on their way, or beyond what is kept."""
    for rank, process in view.ranks.items():
        lost = process.lost(view.t_ns)
        if lost:
            yield Finding(
                kind="records-dropped",
                severity="warning",
                ranks=(rank,),
                t_ns=view.t_ns,
                text=f"{plural(lost, 'record')} of rank {rank} were lost, so its figures have "
                f"gaps. The hub was away or too slow; training was not held up by it.",
            )
    if view.store.over_limit:
        yield Finding(
            kind="records-dropped",
            severity="warning",
            t_ns=view.t_ns,
            text=f"{plural(view.store.over_limit, 'record')} beyond what is kept in memory were "
            f"left out.",
        )


def begun_late(view: View) -> Iterable[Finding]:
    """Ranks whose first records are not here: a viewer that joined late, a cut file."""
    missed = {rank: p.missed_before for rank, p in view.ranks.items() if p.missed_before}
    if missed:
        most = max(missed.values())
        yield Finding(
            kind="records-missing",
            severity="info",
            ranks=tuple(missed),
            t_ns=view.begin_ns,
            text=f"the first {plural(most, 'record')} of {ranks_text(missed)} are not here: "
            f"what came before, and sums over the whole run, are not known.",
        )


def unseen_ranks(view: View) -> Iterable[Finding]:
    """Ranks that the groups name and that never told anything, though ops with them are over."""
    members = {r for (e, _), g in view.store.groups.items() if e == view.epoch for r in g.ranks}
    unseen = tuple(sorted(members - view.ranks.keys()))
    if not unseen or not view.ranks:
        return
    if view.run_end is None and not any(_passed(row, unseen) for row in collectives(view)):
        return
    yield Finding(
        kind="unseen-rank",
        severity="warning",
        ranks=unseen,
        t_ns=view.begin_ns,
        text=f"nothing was recorded of {ranks_text(unseen)}: what was done there is not known, and "
        f"figures over ranks leave {'it' if len(unseen) == 1 else 'them'} out.",
        advice="The agent is not in those processes, or their part of the recording is missing: "
        "see `pardbg doctor` there.",
    )


def _passed(row: CollectiveRow, unseen: tuple[int, ...]) -> bool:
    """The op is over on all others, so these ranks did take part in it."""
    others = [a for a in row.arrivals if a.rank not in unseen]
    return len(others) < len(row.arrivals) and all(a.completed_ns is not None for a in others)


def unknown_groups(view: View) -> Iterable[Finding]:
    """Ops on groups whose definition never came."""
    ranks = tuple(rank for rank, process in view.ranks.items() if process.undefined_groups)
    if ranks:
        yield Finding(
            kind="unknown-group",
            severity="warning",
            ranks=ranks,
            t_ns=view.begin_ns,
            text=f"{ranks_text(ranks)} issued ops on groups whose definitions are missing: those "
            f"ops cannot be matched, and whom others wait for there is not known.",
        )


def hook_errors(view: View) -> Iterable[Finding]:
    """Hooks of the agent that failed and are off."""
    for rank, process in view.ranks.items():
        for t_ns, where, text in process.errors:
            if t_ns <= view.t_ns:
                yield Finding(
                    kind="hook-error",
                    severity="warning",
                    ranks=(rank,),
                    where=where or None,
                    t_ns=t_ns,
                    text=f"pardbg's hook {where} failed on rank {rank} and is off: {text}. "
                    f"Training goes on; what this hook shows is missing.",
                )


def thread_failures(view: View) -> Iterable[Finding]:
    """Threads of the program that an exception ended while its main thread went on."""
    for rank, process in view.ranks.items():
        for failure in process.failures:
            if failure.thread == "MainThread" or failure.t_ns > view.t_ns:
                continue
            where = place(failure.frames)
            yield Finding(
                kind="thread-exception",
                severity="warning",
                ranks=(rank,),
                culprits=(rank,),
                where=where,
                t_ns=failure.t_ns,
                text=f"rank {rank}'s thread {failure.thread} raised {failure.text}"
                f"{f' (at {where})' if where else ''} and is gone; the rank goes on without it.",
                advice="What waits for this thread will wait forever.",
                evidence=Evidence(failure.t_ns, rank, "timeline"),
            )


def unreadable(view: View) -> Iterable[Finding]:
    """Data of another version, and files that end early."""
    unknown = view.store.unknown
    if unknown:
        yield Finding(
            kind="unknown-data",
            severity="info",
            t_ns=view.t_ns,
            text=f"{plural(unknown, 'record')} or messages could not be read by this version; they "
            f"are counted, not shown.",
        )
    if view.store.truncated:
        yield Finding(
            kind="truncated",
            severity="info",
            t_ns=view.t_ns,
            text="the session file ends early: what was recorded up to its last whole chunk is "
            "here.",
        )
