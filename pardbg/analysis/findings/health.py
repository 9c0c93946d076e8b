"""What is missing from the data itself: dropped, unreadable, or a hook that failed."""

from __future__ import annotations

from collections.abc import Iterable

from pardbg.analysis.asof import View
from pardbg.analysis.model import Evidence, Finding
from pardbg.analysis.places import place


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
                text=f"{lost:,} records of rank {rank} were lost, so its figures have gaps. The "
                f"hub was away or too slow; training was not held up by it.",
            )
    if view.store.over_limit:
        yield Finding(
            kind="records-dropped",
            severity="warning",
            t_ns=view.t_ns,
            text=f"{view.store.over_limit:,} records beyond what is kept in memory were left out.",
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
            text=f"{unknown:,} records or messages could not be read by this version; they are "
            f"counted, not shown.",
        )
    if view.store.truncated:
        yield Finding(
            kind="truncated",
            severity="info",
            t_ns=view.t_ns,
            text="the session file ends early: what was recorded up to its last whole chunk is "
            "here.",
        )
