"""What several detectors need: how processes ended, which groups disagree, where to look."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.comm.matching import calls
from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.hangs.newest import newest_collectives
from pardbg.store.process import Process
from pardbg.words import ranks_text


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where to look: a moment, a rank and a screen."""

    t_ns: int
    rank: int | None
    screen: str
    """A screen's name: ``timeline``, ``collectives``, ``pipeline`` …"""
    lane: str = ""
    """The timeline's lane, where one is meant."""
    op: str = ""
    """The op in words, where one is meant."""


Severity = Literal["error", "warning", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")
"""The worst first."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. ``text`` says what; ``advice`` what to try."""

    kind: str
    """A stable identifier, ``missing-rank``; listed in docs/findings.md."""
    severity: Severity
    t_ns: int
    text: str
    advice: str = ""
    ranks: tuple[int, ...] = ()
    """Whom it concerns; those who wait for a culprit themselves before who waits in turn."""
    culprits: tuple[int, ...] = ()
    """Ranks that caused it; never those that only wait."""
    group: str | None = None
    seq: int | None = None
    where: str | None = None  # ``train.py:88 in forward``
    cost_ns_per_step: int | None = None
    """What a step would save without it, where that can be said."""
    evidence: Evidence | None = None
    first_ns: int | None = None
    """Since when it is so (``t_ns`` is when it was last seen); None: the same."""

    @property
    def order(self) -> tuple[int, int]:
        """Sorts the worst first, then the newest."""
        return SEVERITIES.index(self.severity), -self.t_ns


MANY: Final = 4
"""Number of findings of one rank each, saying the same, that become one."""
_FIGURES: Final = re.compile(r"\d[\d.,–]*")


def gathered(found: Iterable[Finding]) -> list[Finding]:
    """Join findings of one rank each that differ in figures alone: a thousand would bury the
    others. Keeps the order of the first."""
    alike: dict[object, list[Finding]] = defaultdict(list)
    for one in found:
        said = _FIGURES.sub("", one.text) if len(_of(one)) == 1 else object()
        alike[one.kind, one.severity, one.where, said].append(one)
    return [one for same in alike.values() for one in (_one(same) if len(same) >= MANY else same)]


def _of(finding: Finding) -> tuple[int, ...]:
    return finding.culprits or finding.ranks


def _one(same: Sequence[Finding]) -> list[Finding]:
    of = {rank for one in same for rank in _of(one)}
    if len(of) < MANY:
        return list(same)
    worst = max(same, key=lambda one: one.cost_ns_per_step or 0)
    text = f"{worst.text} Likewise {ranks_text(of.difference(_of(worst)))}."
    ranks = tuple(dict.fromkeys(rank for one in same for rank in one.ranks))
    culprits = tuple(sorted({rank for one in same for rank in one.culprits}))
    return [replace(worst, text=text, ranks=ranks, culprits=culprits)]


_HANGS: Final = ("op mismatch", "size mismatch", "root mismatch")
BadEnd = tuple[int, int, str]
"""(rank, when, killed, lost, exception or code)"""
_TRANSPORT: Final = re.compile(
    r"onnection (closed|reset|refused|was)|Broken pipe|[Tt]imed out|Socket (closed|Timeout)|"
    r"remote process|Application timeout|NCCL (error|communicator)|DistBackendError"
)


@per_view
def bad_ends(view: View) -> list[BadEnd]:
    """Return how ranks ended badly, first to last: an uncaught exception, a kill, an exit code."""
    over = [(rank, one) for rank, one in view.ranks.items() if one.failures or one.ends]
    made = [end for rank, one in over if (end := _bad_end(view, rank, one)) is not None]
    return sorted(made, key=lambda end: (end[1], end[0]))


def _bad_end(view: View, rank: int, process: Process) -> BadEnd | None:
    fatal = [f for f in process.failures if f.thread == "MainThread" and f.t_ns <= view.t_ns]
    if fatal:
        return rank, fatal[0].t_ns, "exception"
    end = view.proc_end(process)
    if end is None:
        return None
    if end[1] in ("killed", "lost"):
        return rank, end[0], end[1]
    return (rank, end[0], "code") if process.exit_code else None


def is_transport(text: str) -> bool:
    """Return whether an exception is of a lost rank or connection: not the first cause."""
    return _TRANSPORT.search(text) is not None


def left_waiting(view: View) -> dict[int, tuple[int, ...]]:
    """Return rank -> the ended ranks it waits for, if nobody waits for it: it is ended next."""
    waits: dict[int, tuple[int, ...]] = {}
    for row in newest_collectives(view):
        gone = tuple(r for r in row.missing if ended(view, r))
        if row.verdict == "missing rank" and gone:
            waits.update(dict.fromkeys(row.issued, gone))
    awaited = {rank for gone in waits.values() for rank in gone}
    return {rank: gone for rank, gone in waits.items() if rank not in awaited}


def left_ns(view: View, rank: int) -> int | None:
    """Return when the rank's program, at the latest its process, ended, in ns; None: neither."""
    process = view.ranks[rank]
    end = view.proc_end(process)
    times = [end[0]] if end is not None else []
    if process.leaving_ns is not None and process.leaving_ns <= view.t_ns:
        times.append(process.leaving_ns)
    return min(times, default=None)


def ended(view: View, rank: int) -> bool:
    """Return whether the rank's process is gone."""
    return rank in view.ranks and view.proc_end(view.ranks[rank]) is not None


def first(row: CollectiveRow) -> int:
    """Return when its first rank issued it, in ns."""
    return min(row.issued.values(), default=0)


@per_view
def mismatched(view: View) -> set[tuple[int, str]]:
    """Return (epoch, group key) of groups whose last collectives disagree: that they hang follows.
    Other dtypes alone hold nobody up."""
    return {r.key for r in (*newest_collectives(view), *calls(view)) if r.verdict in _HANGS}


def at_row(row: CollectiveRow, rank: int | None) -> Evidence:
    """Return the collective itself, on its screen."""
    return Evidence(first(row), rank, "collectives", op=f"{row.op} {row.label} #{row.seq}")
