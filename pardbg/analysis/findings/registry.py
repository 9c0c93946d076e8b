"""All detectors: one more kind of finding is one more line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import pardbg.analysis.findings.health as health
import pardbg.analysis.findings.numbers as numbers
from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.base.run import rehearsed
from pardbg.analysis.base.times import times
from pardbg.analysis.findings.ends import ends
from pardbg.analysis.findings.hangs import hangs, late
from pardbg.analysis.findings.memory import memory
from pardbg.analysis.findings.mismatches import messages, mismatches, thread_order
from pardbg.analysis.findings.rehearsed import orders
from pardbg.analysis.findings.shared import Finding, gathered
from pardbg.analysis.findings.speed.communication import exposed, small_messages
from pardbg.analysis.findings.speed.links import slow_groups, slow_links
from pardbg.analysis.findings.speed.pipeline import pipelines
from pardbg.analysis.findings.speed.slow_steps import slow_steps
from pardbg.analysis.findings.speed.stragglers import stragglers

Detector = Callable[[View], Iterable[Finding]]
"""What it finds at the view's cursor. Rows that several need (``collectives(view)``,
``p2p_rows(view)``, …) are ``@per_view``: computed once."""

OF_SPEED: Final[tuple[Detector, ...]] = (
    late,
    stragglers,
    slow_steps,
    pipelines,
    exposed,
    small_messages,
    slow_links,
    slow_groups,
)
"""Those that ask what took long, or who came late: hosts that run ahead of their devices know
neither."""
DETECTORS: Final[tuple[Detector, ...]] = (
    ends,
    health.restarts,
    health.recorder_lost,
    health.recorder_limits,
    health.remote_calls,
    health.nodes_lost,
    health.several_jobs,
    health.nothing_seen,
    health.clocks,
    mismatches,
    thread_order,
    messages,
    hangs,
    *OF_SPEED,
    memory,
    numbers.nan_origin,
    numbers.divergence,
    numbers.unaveraged,
    numbers.ungraded,
    health.dropped,
    health.limits,
    health.begun_late,
    health.unseen_ranks,
    health.unknown_groups,
    health.hook_errors,
    health.thread_failures,
    health.unreadable,
)


OF_ORDER: Final[tuple[Detector, ...]] = (
    ends, mismatches, thread_order, messages, hangs, health.hook_errors, health.thread_failures,
)  # fmt: skip
"""Those that ask who did what, in which order."""


@per_view
def findings(view: View) -> tuple[Finding, ...]:
    """Return all findings at the cursor, the worst first, then the newest."""
    # Times of a rehearsal count events: nothing that is measured is found in them.
    detectors = OF_ORDER if rehearsed(view) else DETECTORS
    if times(view):
        detectors = tuple(one for one in detectors if one not in OF_SPEED)
    found = orders(view)
    if found:  # that ranks do not meet, and wait, follows from it
        detectors = (ends, health.hook_errors)
    made = list(found) + [finding for detector in detectors for finding in detector(view)]
    return tuple(sorted(gathered(made), key=lambda finding: finding.order))
