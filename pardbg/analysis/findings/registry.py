"""All detectors, and the findings at a cursor. A new kind of finding needs a detector here and a
row in ``kinds``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Final

import pardbg.analysis.findings.recording as recording
import pardbg.analysis.findings.reported as reported
import pardbg.analysis.findings.stalls.waiting as waiting
import pardbg.analysis.findings.values.batches as batches
import pardbg.analysis.findings.values.diverging as diverging
import pardbg.analysis.findings.values.numbers as numbers
import pardbg.analysis.findings.values.paces as paces
import pardbg.analysis.findings.values.replicas as replicas
import pardbg.analysis.findings.values.scales as scales
from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.base.run import rehearsed
from pardbg.analysis.base.times import are_launches
from pardbg.analysis.findings.arbiter import CALLS, STALLS, decided, surviving
from pardbg.analysis.findings.ends import ended_by_launcher, ends, thread_failures
from pardbg.analysis.findings.finding import Candidate, Finding
from pardbg.analysis.findings.load import overloaded_hosts
from pardbg.analysis.findings.memory import failed_requests, memory
from pardbg.analysis.findings.speed.communication import exposed, small_messages
from pardbg.analysis.findings.speed.input_bound import input_bound
from pardbg.analysis.findings.speed.links import slow_groups, slow_links
from pardbg.analysis.findings.speed.pipeline import pipelines
from pardbg.analysis.findings.speed.slow_steps import slow_steps
from pardbg.analysis.findings.speed.stragglers import stragglers
from pardbg.analysis.findings.stalls.absences import with_handled
from pardbg.analysis.findings.stalls.mismatches import messages, mismatches, thread_order
from pardbg.analysis.findings.stalls.rehearsed import orders
from pardbg.analysis.findings.stalls.stuck import left_behind, left_locks, stuck_calls, stuck_ops
from pardbg.analysis.findings.values.left_out import left_out

Detector = Callable[[View], Iterable[Candidate]]
"""Function that yields candidates at the view's cursor. Rows that several detectors need
(``collectives(view)``, ``p2p_rows(view)``, …) are ``@per_view``: computed once."""


@per_view
def disagreements(view: View) -> tuple[Candidate, ...]:
    """Return candidates for ops, messages or threads of ranks that disagree, unsettled ones too."""
    found = chain(mismatches(view), thread_order(view), messages(view))
    return tuple(with_handled(view, one) for one in found)


@per_view
def stalls(view: View) -> tuple[Candidate, ...]:
    """Return candidates for ranks held up at the cursor, or just before the job fell apart."""
    for then, over in waiting.moments(view):
        if not waiting.is_held(then):
            calls = chain(stuck_calls(then), left_locks(then), left_behind(then))
            waits = (waiting.waits(then, over), stuck_ops(then, over), calls)
            left = surviving(chain(disagreements(then), *waits))
            if found := [one for one in left if isinstance(one.facts, (*STALLS, *CALLS))]:
                return tuple(with_handled(then, one) for one in found)
    return ()


@per_view
def standstills(view: View) -> tuple[Finding, ...]:
    """Return findings about ranks that hang or disagree, also those of a job that fell apart."""
    return decided((*disagreements(view), *stalls(view)))


@per_view
def ended_ranks(view: View) -> frozenset[int]:
    """Return ranks that a launcher ended, after another rank's failure or on request."""
    explained = any(finding.severity == "error" for finding in standstills(view))
    return ended_by_launcher(view, explained)


OF_SPEED: Final[tuple[Detector, ...]] = (
    waiting.late,
    stragglers,
    slow_steps,
    pipelines,
    input_bound,
    exposed,
    small_messages,
    slow_links,
    slow_groups,
    overloaded_hosts,
)
"""Detectors that need durations or arrival times on devices: left out where hosts run ahead of
their devices, as neither is known there."""
OF_ORDER: Final[tuple[Detector, ...]] = (
    ends, disagreements, stalls, recording.hook_errors, thread_failures, orders,
)  # fmt: skip
"""Detectors that need op order only; a rehearsal has no others."""
DETECTORS: Final[tuple[Detector, ...]] = (
    *OF_ORDER,
    *OF_SPEED,
    recording.restarts,
    recording.recorder_lost,
    recording.recorder_limits,
    recording.remote_calls,
    recording.nodes_lost,
    recording.several_jobs,
    recording.no_ranks,
    recording.clocks,
    memory,
    failed_requests,
    reported.nccl_warnings,
    reported.ras_status,
    reported.logged,
    reported.devices,
    reported.shared_devices,
    numbers.nan_origin,
    diverging.diverges,
    replicas.divergence,
    left_out,
    numbers.unaveraged,
    numbers.ungraded,
    replicas.unequal_starts,
    replicas.unequal_settings,
    replicas.unequal_modes,
    batches.same_data,
    batches.same_targets,
    batches.unlike_data,
    batches.same_parts,
    batches.same_orders,
    batches.skipped_batches,
    numbers.kept_gradients,
    numbers.unequal_accumulation,
    scales.unequal_scales,
    scales.unequal_computations,
    scales.clipped_parts,
    scales.only_zeros,
    paces.unequal_averaging,
    paces.step_orders,
    paces.step_drift,
    replicas.stale_parameters,
    replicas.late_averages,
    numbers.summed_twice,
    recording.dropped,
    recording.limits,
    recording.missing_begin,
    recording.unrecorded_ranks,
    recording.unknown_groups,
    recording.unreadable,
)


@per_view
def findings(view: View) -> tuple[Finding, ...]:
    """Return all findings at the cursor, worst severity first, then newest."""
    return decided(chain.from_iterable(detect(view) for detect in detectors(view)))


def detectors(view: View) -> tuple[Detector, ...]:
    """Return the detectors that apply to this run."""
    # Times of a rehearsal count events: nothing that is measured is found in them.
    of = OF_ORDER if rehearsed(view) else DETECTORS
    return tuple(one for one in of if one not in OF_SPEED) if are_launches(view) else of
