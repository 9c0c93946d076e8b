"""A run's report as plain text: 80 columns, no colour, the answer first."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from textwrap import wrap
from typing import Final

from pardbg.analysis.answers.report import Report
from pardbg.analysis.answers.report_pipeline import PipelineReport, RankUse, by_edge, by_op
from pardbg.analysis.comm.op_rows import CollectiveRow, P2PRow
from pardbg.analysis.memory.breakdown import MemoryRow
from pardbg.analysis.pipeline.dependencies import COMPUTE
from pardbg.analysis.pipeline.mesh import PipelineSummary
from pardbg.render.draw.cells import clean
from pardbg.render.draw.signs import SIGN
from pardbg.render.frame.nccl_text import nccl_lines
from pardbg.render.pages.pipeline.schedule import CAUSE_SHORT
from pardbg.render.reports.sections import (
    WIDTH,
    bandwidth_lines,
    edge_rows,
    loss_text,
    nothing,
    op_rows,
    overlap_lines,
    path_lines,
    peak_lines,
    phase_shares,
    rank_rows,
    shown_rows,
    stage_lines,
    table,
    wait_lines,
)
from pardbg.words import (
    binary_size,
    count,
    duration,
    hosts_text,
    percent,
    percent_rest,
    plural,
    rank_set,
)

MAX_RANKS: Final = 32
"""Maximum rows per table; a note tells that there are more."""
MAX_OPS: Final = 16
MAX_FINDINGS: Final = 12
MAX_STACKS: Final = 3
MAX_FRAMES: Final = 16
HOST_TIMES: Final = (
    "The run computes on a device, and all times here are the host's: no bubble, skew, bandwidth\n"
    "or straggler follows from them. (A device is timed at level full, if the hooks find timing\n"
    "events of it.)"
)
PYTHON_HOOKS: Final = "Ops were recorded in Python, which costs more (pardbg native build: in C++)."


def text(report: Report) -> str:
    """Return the report as text for a terminal."""
    sections = (
        _run(report), _findings(report), _stacks(report), _parts(report), _ranks(report),
        _pipeline(report), _steps(report), _collectives(report), _p2p(report), _memory(report),
        _devices(report), _nccl(report),
    )  # fmt: skip
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def _run(report: Report) -> list[str]:
    run, ranks = report.run, report.ranks
    parts = [run.name or "run", plural(len(ranks), "rank")]
    if len({(rank.now.host, rank.now.node) for rank in ranks}) > 1:
        parts.append(hosts_text(run.num_hosts, (rank.now.node for rank in ranks)))
    if run.backend:
        parts.append(run.backend)
    if report.steps:
        middle = median(s.duration_ns for s in report.steps)
        took = "" if run.rehearsed else f" of {duration(middle)}"
        parts.append(plural(len(report.steps), "step") + took)
    if not run.rehearsed:
        parts.append(duration(report.duration_ns))
    parts.append(_ended(report) if run.exit_code is None else f"exit code {run.exit_code}")
    if report.live and run.exit_code is not None:
        parts.append("still being recorded")
    lines = ["  ".join(parts)]
    if run.argv:
        lines += _wrapped("$ " + shlex.join(run.argv), "  ")
    if run.rehearsed:
        lines.append("A rehearsal: times count events, 10 µs each, and measure nothing.")
    if run.attached:
        lines.append("Attached while it ran: steps and ops are numbered from there.")
    if run.times == "host":
        lines.append(HOST_TIMES)
    elif run.times:
        lines.append("Times are the devices', on the hosts' clocks.")
    if "dispatcher" in run.hooks and not run.rehearsed and not run.times:
        lines.append(PYTHON_HOOKS)
    if loss := loss_text(report):
        lines.append(f"loss {loss}")
    part, following = run.part
    if following or part > 1:
        goes_on = f"; it goes on in {following}" if following else ", its last"
        lines.append(f"Part {part} of a recording{goes_on}.")
    if run.truncated:
        lines.append("The file is cut off or damaged: this is what it has up to there.")
    return lines


def _ended(report: Report) -> str:
    """Return the text for a run without an exit code."""
    if report.run.truncated:
        return "cut off"
    if report.live:
        return "still running"
    if report.run.attached or report.part is not None:
        return "ended"
    states = {rank.now.state for rank in report.ranks}
    return "killed" if states and states <= {"lost", "ended"} else "end not known"


def _findings(report: Report) -> list[str]:
    found = report.findings
    if not found:
        return _titled("Findings", [nothing(report)])
    lines: list[str] = []
    for finding in found[:MAX_FINDINGS]:
        mark = SIGN[finding.severity][0]
        text, where = finding.text, finding.where
        place = f" Place: {where}." if where and where not in text else ""
        lines += _wrapped(f"{mark} {text}{place} {finding.advice}".rstrip(), "  ")
    return _titled("Findings", lines + _more(found, "finding", MAX_FINDINGS))


def _stacks(report: Report) -> list[str]:
    """Return where the culprits stood or ended, as Python prints it."""
    lines: list[str] = []
    for stack in report.stacks[:MAX_STACKS]:
        own = [frame for frame in stack.frames if not frame[0].startswith("<frozen")]  # its start
        cut = ["  …"] if len(own) > MAX_FRAMES else []
        frames = [f'  File "{f}", line {row}, in {name}' for f, row, name in own[-MAX_FRAMES:]]
        lines += [f"rank {stack.rank} (innermost last):", *cut, *map(clean, frames)]
    return _titled("Stacks", lines) if lines else []


def _parts(report: Report) -> list[str]:
    """Return the lives and roles of a run with several, with a mark at the one of the figures."""
    begun = min((part.begin_ns for part in report.parts), default=0)
    rows = [("", "part", "ranks", "steps", "from", "for")]
    for part in report.parts[:MAX_RANKS]:
        here, name = "▸" if part.number == report.part else "", f"{part.number}  {part.name}"
        since, lasted = duration(part.begin_ns - begun), duration(part.end_ns - part.begin_ns)
        rows.append((here, name, rank_set(part.ranks), str(part.num_steps), since, lasted))
    which = "the newest life" if report.part is None else f"part {report.part}"
    note = f"the figures of this report are of {which}; --part N shows another"
    lines = [*table(rows, (0, 1, 2), WIDTH), *_more(report.parts, "part"), note]
    return _titled("Parts", lines) if report.parts else []


def _ranks(report: Report) -> list[str]:
    rows = rank_rows(shown_rows(report, report.ranks, lambda row: row.now.rank, MAX_RANKS))
    lines = table(rows, (1, 3), WIDTH) + _more(report.ranks)
    return _titled("Ranks", lines if len(rows) > 1 else ["none seen"])


def _pipeline(report: Report) -> list[str]:
    pipeline = report.pipeline
    if pipeline is None:
        return []
    measured, implied = pipeline.bubble_fraction, pipeline.implied_fraction
    title = f"Pipeline  {pipeline.schedule or 'without a schedule object'}"
    shape = f"{pipeline.num_stages} stages, {pipeline.num_microbatches} microbatches"
    lines = [f"{shape}, {plural(len(pipeline.steps), 'complete step')}"]
    if pipeline.num_older_steps:
        lines[0] += f" (the newest; {count(pipeline.num_older_steps)} older ones are not in here)"
    if measured is None:
        return _titled(title, [*lines, *peak_lines(pipeline.peaks)])
    figures = [
        f"bubble {percent(measured)}", f"implied {percent(implied)}",
        f"bound {percent(pipeline.bound_fraction)}",
    ]  # fmt: skip
    if implied is not None:
        figures.append(f"excess {percent_rest(measured, implied)}")
    if pipeline.num_held:
        lines[0] += f" ({pipeline.num_held} left out: held by the debugger)"
    lines += ["   ".join(figures), *path_lines(pipeline.critical_path), ""]
    lines += [*_idle_table(pipeline.use), *peak_lines(pipeline.peaks)]
    lines += [*wait_lines(pipeline.waits), "", *stage_lines(pipeline.stages)]
    return _titled(title, lines + _others(report.pipelines))


def _others(pipelines: Sequence[PipelineSummary]) -> list[str]:
    """Return all pipelines of a run with several; the report's figures are of the first one."""
    if len(pipelines) < 2:
        return []
    rows = [("pipeline", "ranks", "bubble")]
    for pipeline in pipelines[:MAX_RANKS]:
        rows.append((pipeline.label, rank_set(pipeline.ranks), percent(pipeline.bubble_fraction)))
    known = [pipeline for pipeline in pipelines if pipeline.bubble_fraction is not None]
    worst = max(known, key=lambda pipeline: pipeline.bubble_fraction or 0, default=None)
    note = f"the figures above are those of {pipelines[0].label}"
    if worst is pipelines[0]:
        note += ", which has the largest bubble"
    elif worst is not None:
        note += f"; the largest bubble is that of {worst.label}"
    return ["", *table(rows, (0, 1), WIDTH), *_more(pipelines, "pipeline"), note]


def _idle_table(use: Sequence[RankUse]) -> list[str]:
    """Return busy and idle by cause per rank, over the complete steps, as shares of the window."""
    causes = list(use[0].idle) if use else []
    rows = [("rank", "busy", "", *(CAUSE_SHORT[cause] for cause in causes), "in flight")]
    for row in use[:MAX_RANKS]:
        bound = "" if row.in_flight_bound is None else f"/{row.in_flight_bound}"
        rows.append(
            (
                str(row.rank), percent(row.busy), _bar(row.busy),
                *(percent(row.idle[cause]) for cause in causes), f"{row.max_in_flight}{bound}",
            )
        )  # fmt: skip
    return table(rows, (2,), WIDTH) + _more(use) if use else []


def _steps(report: Report) -> list[str]:
    """Return step time by phase."""
    steps = [s for s in report.steps if s.phases]
    if not steps:
        return []
    rows = [("phase", "of the steps", "")]
    for phase, share in phase_shares(steps):
        rows.append((phase, percent(share), _bar(share)))
        if phase == "pipeline" and report.pipeline is not None and report.run.times != "host":
            rows += _inside(report.pipeline, {step.step: step.duration_ns for step in steps})
    return _titled("Phases", table(rows, (0, 2), WIDTH))


def _inside(pipeline: PipelineReport, lasted: Mapping[int, int]) -> list[tuple[str, str, str]]:
    """Return forward and backward within a pipeline's phase, mean over its ranks; the rest is
    waiting."""
    sums: Counter[str] = Counter()
    known = [step for step in pipeline.steps if step.step in lasted]
    for step in known:
        for row in step.ranks:
            for action in row.actions:
                if action.kind in COMPUTE and action.t1_ns is not None:
                    kind = "forward" if action.kind == "F" else "backward"
                    sums[kind] += (action.t1_ns - action.t0_ns) // len(step.ranks)
    whole = max(1, sum(lasted[step.step] for step in known))
    return [(f"  {kind}", percent(ns / whole), _bar(ns / whole)) for kind, ns in sums.items()]


def _collectives(report: Report) -> list[str]:
    found = by_op(report.collectives)
    if not found:
        return []
    heads = ("group", "op", "number", "bytes", "skew", "wait", "transfer", "busbw")
    rows = [heads, *op_rows(found[:MAX_OPS])]
    lines = table(rows, (0, 1), WIDTH) + _more(found, "op", MAX_OPS)
    lines.append(_verdicts(report.collectives))
    beside = overlap_lines(report.overlap)
    if beside:
        lines += ["", "per step, beside compute:", *beside]
    sizes = bandwidth_lines(report.bandwidth)
    if len(sizes) > len(rows):
        lines += ["", "by size:", *sizes]
    return _titled("Collectives (medians)", lines)


def _p2p(report: Report) -> list[str]:
    found = by_edge(report.p2p)
    if not found:
        return []
    heads = ("edge", "number", "bytes", "in all", "wait", "transfer")
    lines = table([heads, *edge_rows(found[:MAX_RANKS])], (0,), WIDTH) + _more(found, "edge")
    lines.append(_verdicts(report.p2p))
    return _titled("Point to point (medians)", lines)


def _verdicts(rows: Sequence[CollectiveRow] | Sequence[P2PRow]) -> str:
    counts = Counter(row.verdict for row in rows)
    ordered = sorted(counts.items(), key=lambda item: (item[0] != "matched", item[0]))
    return ", ".join(f"{count} {verdict}" for verdict, count in ordered)


def _memory(report: Report) -> list[str]:
    known = [row for row in report.memory if any(size is not None for size in _sizes(row))]
    if not known:
        return []
    heads = ("rank", "params", "grads", "optimizer", "activations", "other", "expected")
    rows: list[tuple[str, ...]] = [heads]
    shown = shown_rows(report, known, lambda row: row.rank, MAX_RANKS)
    rows += [(str(row.rank), *map(binary_size, _sizes(row))) for row in shown]
    lines = table(rows, (), WIDTH) + _more(known)
    lines += _on_devices(shown)
    lines.append("expected: the first three between steps, at the model's ZeRO level")
    return _titled("Memory", lines)


def _devices(report: Report) -> list[str]:
    if not report.devices:
        return []
    heads = ("device", "ranks", "load", "clock", "power", "temperature", "")
    rows: list[tuple[str, ...]] = [heads]
    for one in report.devices[:MAX_RANKS]:
        watts = f"{one.milliwatts // 1000} of {one.limit_milliwatts // 1000} W"
        rows.append(
            (f"{one.host}:{one.index}", rank_set(one.ranks), percent(one.percent / 100, 0),
             f"{one.clock_mhz} of {one.max_clock_mhz} MHz", watts, f"{one.celsius} °C",
             ", ".join(one.reasons))
        )  # fmt: skip
    return _titled("Devices (newest readings)", table(rows, (), WIDTH))


def _nccl(report: Report) -> list[str]:
    nccl = report.traffic.nccl
    if nccl is None:
        return []
    rows = [row for line in nccl_lines(nccl) for row in _wrapped(line, "  ")]
    return _titled(f"NCCL {nccl.version}".rstrip(), rows)


def _on_devices(shown: Sequence[MemoryRow]) -> list[str]:
    """Return a table of the device allocators' memory; empty if there is none."""
    rows = [row for row in shown if row.reserved_bytes]
    if not rows:
        return []
    heads = ("rank", "allocated", "peak", "reserved", "not in use", "of")
    cells = [heads, *((str(row.rank), *map(binary_size, _of_device(row))) for row in rows)]
    return ["", *table(cells, (), WIDTH)]


def _of_device(row: MemoryRow) -> tuple[int | None, ...]:
    unused = (row.reserved_bytes or 0) - (row.total_bytes or 0)
    return row.total_bytes, row.peak_bytes, row.reserved_bytes, max(0, unused), row.limit_bytes


def _sizes(row: MemoryRow) -> tuple[int | None, ...]:
    return (
        row.parameters_bytes, row.gradients_bytes, row.optimizer_bytes,
        row.activations_peak_bytes, row.unattributed_bytes, row.expected_bytes,
    )  # fmt: skip


# ------------------------------------------------------------------ parts


def _titled(title: str, lines: Sequence[str]) -> list[str]:
    return [f"── {title} ".ljust(WIDTH, "─"), *lines]


def _more(rows: Sequence[object], thing: str = "rank", most: int = MAX_RANKS) -> list[str]:
    left = len(rows) - most
    return [f"… and {plural(left, f'more {thing}')} (--json has all)"] if left > 0 else []


def _wrapped(line: str, indent: str) -> list[str]:
    return wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False)[:6] or [line[:WIDTH]]


def _bar(share: float) -> str:
    filled = round(max(0.0, min(1.0, share)) * 16)
    return "█" * filled + "░" * (16 - filled)
