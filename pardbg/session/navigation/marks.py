"""Marks of events for the time bar: steps, findings, pauses, drops, bookmarks, restarts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pardbg.analysis.findings.finding import Finding
from pardbg.events.control_codes import Mode
from pardbg.events.control_facts import HubRestarted
from pardbg.session.navigation.travel import since_ns
from pardbg.store.store import Store

MarkKind = Literal["step", "error", "warning", "info", "pause", "drop", "bookmark", "restart"]

MAX_STEPS: Final = 400
"""Maximum number of step ends on a time bar; more would fill the line and are left out."""
MAX_MARKS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Mark:
    """An event of the session. ``t1_ns`` is later than ``t0_ns`` only for a pause."""

    t0_ns: int
    t1_ns: int
    kind: MarkKind
    text: str = ""


def marks(store: Store, findings: Sequence[Finding]) -> tuple[Mark, ...]:
    """Return all events that have a place on the time bar, by time."""
    store.settle()
    made: list[Mark] = [*_steps(store), *_pauses(store), *_restarts(store)]
    made += [Mark(since_ns(f), since_ns(f), f.severity, f.text) for f in findings]
    made += [
        Mark(t_ns, t_ns, "drop", f"rank {process.rank}: {count} records lost so far")
        for process in store.procs.values() for t_ns, count in process.gaps
    ]  # fmt: skip
    made += [Mark(m.t_ns, m.t_ns, "bookmark", m.text) for m in store.bookmarks.all()]
    return tuple(sorted(made, key=lambda mark: mark.t0_ns)[:MAX_MARKS])


def _steps(store: Store) -> Iterator[Mark]:
    """Yield the ends of the training steps of the lowest rank that counts them."""
    counting = [p for p in store.procs.values() if p.rank is not None and len(p.table("step"))]
    lowest = min((p.rank or 0 for p in counting), default=None)
    ends: list[int] = []
    for process in counting:
        if process.rank == lowest and len(process.table("step")) <= MAX_STEPS:
            ends += process.table("step").when.tolist()
    return (Mark(t, t, "step") for t in ends[: MAX_STEPS + 1] if len(ends) <= MAX_STEPS)


def _pauses(store: Store) -> Iterator[Mark]:
    """Yield pauses, each from the request for the pause until all ranks run on."""
    since: int | None = None
    for t_ns, event in store.controls.last(None, len(store.controls)):
        if event.status is None:
            continue
        running = event.status.mode is Mode.RUNNING and not event.status.held
        if not running and since is None:
            since = t_ns
        elif running and since is not None:
            yield Mark(since, t_ns, "pause", "held")
            since = None
    if since is not None:
        yield Mark(since, store.end_ns, "pause", "held")


def _restarts(store: Store) -> Iterator[Mark]:
    for t_ns, event in store.controls.last(None, len(store.controls)):
        if isinstance(event.fact, HubRestarted):
            yield Mark(t_ns, t_ns, "restart", f"hub {event.fact.hub} was lost, another took over")
    begun: dict[int, int] = {}
    for process in store.procs.values():
        if process.epoch and process.rank is not None and process.started_ns is not None:
            t_ns = begun.get(process.epoch, process.started_ns)
            begun[process.epoch] = min(t_ns, process.started_ns)
    for epoch, t_ns in begun.items():
        yield Mark(t_ns, t_ns, "restart", f"workers started again, epoch {epoch}")
