"""Report of the whole run at its end as one frozen value, for text, page and JSON.

``as_json`` is the stable interface of ``pardbg report --json``, described by ``report.schema.json``
beside this module. Keys are only ever added.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final

from pardbg.analysis.answers import report_pipeline
from pardbg.analysis.answers.hang import RankStack, rank_stacks
from pardbg.analysis.answers.ranks import RankNow, agent_overhead, rank_rows
from pardbg.analysis.answers.step_times import unheld_step_rows
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.leads import Ahead
from pardbg.analysis.base.losses import (
    NotFinite,
    json_number,
    loss_history,
    loss_source,
    not_finite,
)
from pardbg.analysis.base.run import RunInfo, run_info
from pardbg.analysis.base.steps import StepRow
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.comm.op_rows import CollectiveRow, P2PRow
from pardbg.analysis.comm.p2p import p2p_rows
from pardbg.analysis.comm.traffic import TrafficView, traffic_view
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.finding import Finding, facts_json
from pardbg.analysis.findings.reported import readings
from pardbg.analysis.memory.breakdown import MemoryRow, memory_rows
from pardbg.analysis.pipeline.mesh import PipelineSummary, pipeline_summaries
from pardbg.analysis.pipeline.pipeline_steps import pipeline_view
from pardbg.events.device_facts import DeviceNews
from pardbg.store.intake import ISSUE_COLLECTIVE, ISSUE_P2P
from pardbg.store.lives import Part
from pardbg.store.store import Store

MAX_OPS: Final = 10_000
"""Maximum number of newest ops that a report lists; ``traffic`` sums the whole run."""
_ACTIVITY: Final = ("step", "phase", "action", ISSUE_COLLECTIVE, ISSUE_P2P)
_MOVED_NS: Final = 1_000_000_000
"""Time, ns, by which a rank's newest record may follow on its last stack."""


@dataclass(frozen=True, slots=True)
class RankTotals:
    """Figures of a rank at the end of the run and over all of it."""

    now: RankNow
    num_steps: int
    agent_overhead_fraction: float | None
    """Time in the agent's hooks, as a share of the rank's steps."""


@dataclass(frozen=True, slots=True)
class Report:
    """Report of the whole run at its end."""

    run: RunInfo
    live: bool
    duration_ns: int
    num_records: int
    dropped_records: int
    unknown_records: int
    ranks: tuple[RankTotals, ...]
    steps: tuple[StepRow, ...]
    loss_source: str
    """Source of the losses; empty: no loss is known."""
    not_finite: NotFinite | None
    pipeline: report_pipeline.PipelineReport | None
    """Full figures of the first of ``pipelines``."""
    pipelines: tuple[PipelineSummary, ...]
    overlap: tuple[report_pipeline.RankOverlap, ...]
    bandwidth: tuple[report_pipeline.Bandwidth, ...]
    collectives: tuple[CollectiveRow, ...]
    """Newest collectives, newest last, MAX_OPS at most; the same holds for ``p2p``."""
    p2p: tuple[P2PRow, ...]
    traffic: TrafficView
    memory: tuple[MemoryRow, ...]
    findings: tuple[Finding, ...]
    begin_ns: int = 0
    stacks: tuple[RankStack, ...] = ()
    """Stacks of the culprits of errors and warnings, as known."""
    devices: tuple[DeviceNews, ...] = ()
    """Newest readings of the devices (NVML)."""
    parts: tuple[Part, ...] = ()
    """Lives and roles of a run that has several; all other fields are about one of them."""
    part: int | None = None
    """Number of the part that the report is about; None: no single part."""


def report(store: Store) -> Report:
    """Return the report of the whole run."""
    view = View(store, None)
    rows = collectives(view, MAX_OPS)  # matched once: fewer are its tail
    pipeline = pipeline_view(view)
    parts, procs = store.parts(), {process.proc for process in view.ranks.values()}
    found = findings(view)
    culprits = {rank for one in found if one.severity != "info" for rank in one.culprits}
    return Report(
        run=run_info(view),
        live=store.live,
        duration_ns=view.end_ns - view.begin_ns,
        num_records=view.num_records,
        dropped_records=store.lost(None),
        unknown_records=store.unknown,
        ranks=tuple(_totals(view, row) for row in rank_rows(view, pipeline)),
        steps=unheld_step_rows(view, None),
        loss_source=loss_source(view),
        not_finite=not_finite(view, loss_history(view)),
        pipeline=report_pipeline.pipeline_report(view),
        pipelines=pipeline_summaries(view),
        overlap=report_pipeline.rank_overlaps(view),
        bandwidth=report_pipeline.bandwidths(rows),
        collectives=rows,
        p2p=p2p_rows(view, MAX_OPS),
        traffic=traffic_view(view),
        memory=memory_rows(view),
        findings=found,
        begin_ns=view.begin_ns,
        stacks=tuple(
            one for one in rank_stacks(view) if one.rank in culprits and _is_last(view, one)
        ),
        devices=tuple(news for _, (_, news) in sorted(readings(view).items())),
        parts=parts,
        part=next((part.number for part in parts if part.procs == procs), None),
    )


def _is_last(view: View, stack: RankStack) -> bool:
    """Return whether the rank has done nothing since its stack was taken."""
    done_ns = view.newest_ns(view.ranks[stack.rank], _ACTIVITY)
    return stack.t_ns >= done_ns - _MOVED_NS


def _totals(view: View, row: RankNow) -> RankTotals:
    process = view.ranks[row.rank]
    steps = process.table("step").base + view.visible(process, "step")
    return RankTotals(row, steps, agent_overhead(view, process, None))


# ------------------------------------------------------------------ JSON


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as ``report.schema.json`` describes it; NaN and infinity become text."""
    return {
        "run": _run_json(report),
        "ranks": [
            _pick(row.now, "rank host node pid state")
            | _pick(row, "num_steps")
            | _pick(row.now, "dropped_records")
            | _pick(row, "agent_overhead_fraction")
            | _ahead_json(row.now.ahead)
            for row in report.ranks
        ],
        "groups": _rows(report.traffic.groups, "name axis ranks backend"),
        "steps": [
            _pick(step, "step duration_ns")
            | {"loss": json_number(step.loss)}
            | _pick(step, "phases")
            for step in report.steps
        ],
        "loss_source": report.loss_source or None,
        "loss_not_finite": None if report.not_finite is None else _all(report.not_finite),
        "pipeline": None if report.pipeline is None else _pipeline_json(report.pipeline),
        "pipelines": [_all(row) for row in report.pipelines],
        "overlap": [_all(row) for row in report.overlap],
        "bandwidth": [_all(row) for row in report.bandwidth],
        "collectives": _rows(
            report.collectives,
            "group seq op reduce bytes skew_ns last_rank wait_ns transfer_ns transfer_most_ns "
            "busbw_gbps verdict missing",
        ),
        "p2p": _rows(report.p2p, "group src dst tag order bytes label transfer_ns verdict"),
        "traffic": _rows(report.traffic.edges, "src dst bytes source"),
        "nccl": None if report.traffic.nccl is None else facts_json(report.traffic.nccl),
        "memory": _rows(
            report.memory,
            "rank parameters_bytes gradients_bytes optimizer_bytes activations_peak_bytes "
            "unattributed_bytes expected_bytes total_bytes reserved_bytes peak_bytes limit_bytes",
        ),
        "devices": facts_json(report.devices),
        "findings": [finding_json(finding) for finding in report.findings],
        "parts": [
            _pick(part, "number name ranks num_steps begin_ns end_ns")
            | {"shown": part.number == report.part}
            for part in report.parts
        ],
    }


def _ahead_json(ahead: Ahead | None) -> dict[str, Any]:
    """Return the lead as JSON fields; empty without device times."""
    if ahead is None:
        return {}
    return {"lead_ns": ahead.lead_ns, "host_bound_fraction": ahead.host_bound}


def _pick(row: object, names: str) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in names.split()}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


def _all(row: Any) -> dict[str, Any]:
    return _pick(row, " ".join(field.name for field in fields(row)))


def _rows(rows: Iterable[object], names: str) -> list[dict[str, Any]]:
    return [_pick(row, names) for row in rows]


def _run_json(report: Report) -> dict[str, Any]:
    part, following = report.run.part
    return (
        _pick(report.run, "name run argv t0_ns wall_ns")
        | _pick(report, "duration_ns")
        | _pick(report.run, "exit_code num_hosts backend truncated times hooks attached")
        | {"part": part, "next_part": following or None}
        | _pick(report, "live num_records dropped_records unknown_records")
    )


def _pipeline_json(pipeline: report_pipeline.PipelineReport) -> dict[str, Any]:
    path = pipeline.critical_path
    figures = "schedule num_stages num_microbatches bubble_fraction implied_fraction bound_fraction"
    return {
        **_pick(pipeline, f"{figures} num_older_steps"),
        "stages": [_all(row) for row in pipeline.stages],
        "critical_path": None
        if path is None
        else {
            **_pick(path, "step compute_ns tensor_ns host_ns hops"),
            "ranks": [{"rank": r, "compute_ns": ns} for r, ns in sorted(path.by_rank().items())],
            "actions": [link.action for link in path.links],
        },
        "waits": [_all(row) for row in pipeline.waits],
        "peaks": [
            {"rank": rank, **_pick(peak, "step action t_ns number in_flight")}
            for rank, peak in pipeline.peaks.items()
        ],
        "steps": [
            {
                "step": step.step,
                "window_ns": step.window_ns,
                "held_ns": pipeline.held_ns[step.step],
                **_pick(step, "bubble_fraction implied_fraction"),
                "ranks": [
                    _pick(row, "rank busy_ns idle_ns")
                    | {"actions": [action.text for action in row.actions]}
                    | _pick(row, "max_in_flight in_flight_bound")
                    for row in step.ranks
                ],
            }
            for step in pipeline.steps
        ],
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    """Return a finding in the form of the report."""
    return {
        **_pick(finding, "kind severity"),
        "ranks": sorted(finding.ranks),
        "culprits": sorted(finding.culprits),
        **_pick(finding, "group seq where text advice cost_ns_per_step t_ns"),
        "first_ns": finding.t_ns if finding.first_ns is None else finding.first_ns,
        "evidence": None if finding.evidence is None else _all(finding.evidence),
        "facts": facts_json(finding.facts),
        "handled": [{"exception": what, "ranks": [*ranks]} for what, ranks in finding.handled],
    }
