"""All detectors: one more kind of finding is one more line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.findings.ends import ends
from pardbg.analysis.findings.hangs import hangs, late
from pardbg.analysis.findings.health import (
    begun_late,
    clocks,
    dropped,
    hook_errors,
    nothing_seen,
    recorder_lost,
    restarts,
    several_jobs,
    thread_failures,
    unknown_groups,
    unreadable,
    unseen_ranks,
)
from pardbg.analysis.findings.memory import memory
from pardbg.analysis.findings.mismatches import messages, mismatches, thread_order
from pardbg.analysis.findings.numbers import divergence, nan_origin, unaveraged
from pardbg.analysis.findings.shared import Finding
from pardbg.analysis.findings.speed.communication import exposed, small_messages
from pardbg.analysis.findings.speed.links import slow_groups, slow_links
from pardbg.analysis.findings.speed.pipeline import pipelines
from pardbg.analysis.findings.speed.slow_steps import slow_steps
from pardbg.analysis.findings.speed.stragglers import stragglers

Detector = Callable[[View], Iterable[Finding]]
"""What it finds at the view's cursor. Rows that several need (``collectives(view)``,
``p2p_rows(view)``, …) are ``@per_view``: computed once."""

DETECTORS: Final[tuple[Detector, ...]] = (
    ends,
    restarts,
    recorder_lost,
    several_jobs,
    nothing_seen,
    clocks,
    mismatches,
    thread_order,
    messages,
    hangs,
    late,
    stragglers,
    slow_steps,
    pipelines,
    exposed,
    small_messages,
    slow_links,
    slow_groups,
    memory,
    nan_origin,
    divergence,
    unaveraged,
    dropped,
    begun_late,
    unseen_ranks,
    unknown_groups,
    hook_errors,
    thread_failures,
    unreadable,
)


@per_view
def findings(view: View) -> tuple[Finding, ...]:
    """All findings at the cursor, the worst first, then the newest."""
    made = [finding for detector in DETECTORS for finding in detector(view)]
    return tuple(sorted(made, key=lambda finding: finding.order))
