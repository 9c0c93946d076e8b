"""The whole run as one JSON-able dict: the stable interface of ``pardbg report --json``.

``report.schema.json`` beside this module describes it. Keys are only ever added.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from statistics import median
from typing import Any, Final

from pardbg.analysis.answers.ranks import agent_overhead, rank_rows
from pardbg.analysis.answers.report_tables import bandwidths, rank_overlaps, stage_times, usual_path
from pardbg.analysis.answers.step_times import unheld_step_rows
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.holds import held_ns
from pardbg.analysis.base.losses import json_number, loss_history, not_finite
from pardbg.analysis.base.run import run_info
from pardbg.analysis.base.values import PipelineRank, PipelineStep, RankNow
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.comm.p2p import p2p_rows
from pardbg.analysis.comm.traffic import traffic_view
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.speed.windows import MAX_ROWS
from pardbg.analysis.memory.breakdown import memory_rows
from pardbg.analysis.pipeline.critical_path import CriticalPath
from pardbg.analysis.pipeline.layout import Layout, layouts
from pardbg.analysis.pipeline.mesh import pipeline_summaries
from pardbg.analysis.pipeline.peaks import microbatch_waits, peaks
from pardbg.analysis.pipeline.schedule import newest_step, pipeline_step, pipeline_view
from pardbg.store.store import Store

MAX_STEPS: Final = 500
"""Newest steps whose pipeline is split up action by action: some ms each."""
MAX_WAITS: Final = 16
MAX_OPS: Final = 10_000
"""Newest ones that a report lists; sums in ``traffic`` are over the whole run."""
Json = dict[str, Any]


def report(store: Store) -> Json:
    """Everything the run shows, at its end."""
    view = View(store, None)
    collectives(view, MAX_ROWS)  # matched once: fewer are its tail
    pipeline = pipeline_view(view)
    traffic = traffic_view(view)
    broken = not_finite(view, loss_history(view))
    return {
        "run": _run(view),
        "ranks": [_rank(view, row) for row in rank_rows(view, pipeline)],
        "groups": [
            {"name": g.name, "axis": g.axis, "ranks": list(g.ranks), "backend": g.backend}
            for g in traffic.groups
        ],
        "steps": [
            {
                "step": s.step,
                "duration_ns": s.duration_ns,
                "loss": json_number(s.loss),
                "phases": s.phases,
            }
            for s in unheld_step_rows(view, None)
        ],
        "loss_not_finite": None
        if broken is None
        else {**asdict(broken), "ranks": list(broken.ranks)},
        "pipeline": _pipeline(view),
        "pipelines": pipeline_summaries(view),
        "overlap": [asdict(row) for row in rank_overlaps(view)],
        "bandwidth": [asdict(row) for row in bandwidths(collectives(view, MAX_OPS))],
        "collectives": _collectives(view),
        "p2p": _p2p(view),
        "traffic": [
            {"src": e.src, "dst": e.dst, "bytes": e.bytes, "source": e.source}
            for e in traffic.edges
        ],
        "memory": _memory(view),
        "findings": _findings(view),
    }


def schema() -> Json:
    """The JSON schema of ``report``."""
    file = resources.files("pardbg.analysis.answers").joinpath("report.schema.json")
    text = file.read_text("utf-8")
    loaded: Json = json.loads(text)
    return loaded


def _run(view: View) -> Json:
    run = run_info(view)
    return {
        "name": run.name,
        "run": run.run,
        "argv": list(run.argv),
        "t0_ns": run.t0_ns,
        "wall_ns": run.wall_ns,
        "duration_ns": view.end_ns - view.begin_ns,
        "exit_code": run.exit_code,
        "num_hosts": run.num_hosts,
        "backend": run.backend,
        "truncated": run.truncated,
        "part": run.part[0],
        "next_part": run.part[1] or None,
        "live": view.store.live,
        "num_records": view.num_records,
        "dropped_records": view.store.lost(None),
        "unknown_records": view.store.unknown,
    }


def _rank(view: View, row: RankNow) -> Json:
    process = view.ranks[row.rank]
    return {
        "rank": row.rank,
        "host": row.host,
        "node": row.node,
        "pid": row.pid,
        "state": row.state,
        "num_steps": process.table("step").base + view.visible(process, "step"),
        "dropped_records": row.dropped_records,
        "agent_overhead_fraction": agent_overhead(view, process, None),
    }


def _pipeline(view: View) -> Json | None:
    found = layouts(view)
    if not found:
        return None
    layout = found[0]
    steps = complete_steps(view, layout)
    held = {s.step: held_ns(view, layout.ranks, s.t0_ns, s.t1_ns + s.held_ns) for s in steps}
    # Time under the debugger says nothing about the schedule: such steps are listed, not averaged.
    free = [step for step in steps if not held[step.step]] or steps
    implied = [s.implied_fraction for s in free if s.implied_fraction is not None]
    return {
        "schedule": layout.plan.schedule if layout.plan is not None else "",
        "num_stages": layout.num_stages,
        "num_microbatches": layout.num_microbatches,
        "bubble_fraction": median(s.bubble_fraction for s in free) if free else None,
        "implied_fraction": median(implied) if implied else None,
        "bound_fraction": steps[-1].bound_fraction if steps else None,
        "num_older_steps": max(0, (newest_step(view, layout) or 0) - MAX_STEPS),
        "stages": [asdict(row) for row in stage_times(free)],
        "critical_path": _path(usual_path(free, layout.num_stages)),
        "waits": [asdict(row) for row in microbatch_waits(free)[:MAX_WAITS]],
        "peaks": [
            {
                "rank": rank,
                "step": p.step,
                "action": p.action,
                "t_ns": p.t_ns,
                "number": len(p.in_flight),
                "in_flight": list(p.in_flight),
            }
            for rank, p in (peaks(free[-1]) if free else {}).items()
        ],
        "steps": [
            {
                "step": step.step,
                "window_ns": step.t1_ns - step.t0_ns,
                "held_ns": held[step.step],
                "bubble_fraction": step.bubble_fraction,
                "implied_fraction": step.implied_fraction,
                "ranks": [_pipeline_rank(row) for row in step.ranks],
            }
            for step in steps
        ],
    }


def _path(path: CriticalPath | None) -> Json | None:
    if path is None:
        return None
    return {
        "step": path.step,
        "compute_ns": path.compute_ns,
        "tensor_ns": path.tensor_ns,
        "host_ns": path.host_ns,
        "hops": path.hops,
        "ranks": [{"rank": r, "compute_ns": ns} for r, ns in sorted(path.by_rank().items())],
        "actions": [link.action for link in path.links],
    }


def complete_steps(view: View, layout: Layout) -> list[PipelineStep]:
    """The last steps whose pipeline ran to its end, oldest first, MAX_STEPS at most."""
    newest = newest_step(view, layout)
    if newest is None:
        return []
    made = (
        pipeline_step(view, layout, step) for step in range(max(0, newest - MAX_STEPS), newest + 1)
    )
    return [step for step in made if step is not None and step.complete]


def _pipeline_rank(row: PipelineRank) -> Json:
    return {
        "rank": row.rank,
        "busy_ns": row.busy_ns,
        "idle_ns": dict(row.idle_ns),
        "actions": [a.text for a in row.actions],
        "max_in_flight": row.max_in_flight,
        "in_flight_bound": row.in_flight_bound,
    }


def _collectives(view: View) -> list[Json]:
    return [
        {
            "group": row.group,
            "seq": row.seq,
            "op": row.op,
            "reduce": row.reduce,
            "bytes": row.bytes,
            "skew_ns": row.skew_ns,
            "last_rank": row.last_rank,
            "wait_ns": row.wait_ns,
            "transfer_ns": row.transfer_ns,
            "busbw_gbps": row.busbw_gbps,
            "verdict": row.verdict,
            "missing": list(row.missing),
        }
        for row in collectives(view, MAX_OPS)
    ]


def _p2p(view: View) -> list[Json]:
    return [
        {
            "group": row.group,
            "src": row.src,
            "dst": row.dst,
            "tag": row.tag,
            "order": row.order,
            "bytes": row.bytes,
            "label": row.label,
            "transfer_ns": row.transfer_ns,
            "verdict": row.verdict,
        }
        for row in p2p_rows(view, MAX_OPS)
    ]


def _memory(view: View) -> list[Json]:
    return [
        {
            "rank": row.rank,
            "parameters_bytes": row.parameters_bytes,
            "gradients_bytes": row.gradients_bytes,
            "optimizer_bytes": row.optimizer_bytes,
            "activations_peak_bytes": row.activations_peak_bytes,
            "unattributed_bytes": row.unattributed_bytes,
            "expected_bytes": row.expected_bytes,
        }
        for row in memory_rows(view)
    ]


def _findings(view: View) -> list[Json]:
    return [
        {
            "kind": f.kind,
            "severity": f.severity,
            "ranks": _sorted(f.ranks),
            "culprits": _sorted(f.culprits),
            "group": f.group,
            "seq": f.seq,
            "where": f.where,
            "text": f.text,
            "advice": f.advice,
            "cost_ns_per_step": f.cost_ns_per_step,
            "t_ns": f.t_ns,
            "first_ns": f.t_ns if f.first_ns is None else f.first_ns,
            "evidence": None if f.evidence is None else asdict(f.evidence),
        }
        for f in findings(view)
    ]


def _sorted(ranks: Sequence[int]) -> list[int]:
    return sorted(ranks)
