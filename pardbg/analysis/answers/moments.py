"""Moments that a report draws: what ranks did around the worst findings, or in the newest step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from pardbg.analysis.answers.report import Report
from pardbg.analysis.answers.timeline import Lanes, lanes
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.steps import last_step_rows
from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.findings.kinds.stall_kinds import Stalled
from pardbg.store.store import Store

MAX_MOMENTS: Final = 4
MAX_RANKS: Final = 8
_COLUMNS: Final = 230
"""Number of columns in which narrow spans are merged."""
_STEPS: Final = 2
"""Number of steps before a finding that are drawn."""
_LEAST_NS: Final = 20_000_000


@dataclass(frozen=True, slots=True)
class Moment:
    """Activity of some ranks in a window, in ns."""

    t0_ns: int
    t1_ns: int
    lanes: Lanes
    finding: int | None = None
    """Index of the finding in the report; None: it is the newest step."""
    step: int = 0
    stands: str = ""
    """Place at which a culprit that others wait for stands; empty: none is known."""


def moments(store: Store, report: Report) -> tuple[Moment, ...]:
    """Return the moments of errors and warnings, worst first; without any, the newest step."""
    told = [(at, one) for at, one in enumerate(report.findings) if one.severity != "info"]
    found = [*_of_findings(store, report, told)]
    if not found:
        view, ranks = View(store, None), [row.now.rank for row in report.ranks][:MAX_RANKS]
        for step, t0_ns, t1_ns in last_step_rows(view, view.ranks[ranks[0]], 1) if ranks else ():
            drawn = lanes(store, t0_ns, t1_ns, _COLUMNS, ranks)
            found.append(Moment(t0_ns, t1_ns, drawn, step=step))
    return tuple(one for one in found if any(one.lanes.values()))


def _of_findings(
    store: Store, report: Report, told: Sequence[tuple[int, Finding]]
) -> Iterator[Moment]:
    usual_ns = round(median([step.duration_ns for step in report.steps] or [_LEAST_NS]))
    for at, finding in told[:MAX_MOMENTS]:
        t1_ns, span_ns = finding.lasts_until(store.end_ns), _STEPS * usual_ns
        if t1_ns != finding.t_ns:
            span_ns = t1_ns - finding.t_ns + usual_ns
        t0_ns = t1_ns - max(span_ns, _LEAST_NS)
        every = (*finding.culprits, *finding.ranks, *(row.now.rank for row in report.ranks))
        ranks = sorted([*dict.fromkeys(every)][:MAX_RANKS])
        stands = finding.where or "" if isinstance(finding.facts, Stalled) else ""
        drawn = lanes(store, t0_ns, t1_ns, _COLUMNS, ranks)
        yield Moment(t0_ns, t1_ns, drawn, at, stands=stands)
