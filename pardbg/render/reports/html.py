"""A run's report as one HTML page without network access or scripts: findings, then pictures."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from statistics import median
from typing import Final

from pardbg.analysis.answers.moments import Moment
from pardbg.analysis.answers.report import Report
from pardbg.analysis.answers.report_pipeline import PipelineReport, RankUse, by_edge, by_op
from pardbg.analysis.comm.traffic import StepTraffic
from pardbg.render.draw.svg import escape as _e
from pardbg.render.pages.pipeline.schedule import CAUSE_WORD, KIND_WORD
from pardbg.render.reports import charts
from pardbg.render.reports.html_parts import document, figure, key, more, section, table
from pardbg.render.reports.sections import (
    edge_rows,
    finite_losses,
    not_finite_text,
    nothing,
    op_rows,
    phase_shares,
    rank_rows,
    shown_rows,
)
from pardbg.words import count, duration, number, percent, plural, size

MAX_FINDINGS: Final = 40
MAX_ROWS: Final = 64


def page(report: Report, source: str, drawn: Sequence[Moment] = ()) -> str:
    """Return the report's page. ``source``: the session's name; ``drawn``: moments to draw."""
    sections = (
        _head(report, source), _facts(report), _findings(report, drawn), _timeline(report, drawn),
        _pipeline(report.pipeline), _steps(report), _collectives(report), _p2p(report),
        _traffic(report.traffic.step), _memory(report), _ranks(report), _foot(report, source),
    )  # fmt: skip
    return document(report.run.name or "run", sections)


def _head(report: Report, source: str) -> str:
    run, code = report.run, report.run.exit_code
    parts = [plural(len(report.ranks), "rank")]
    if run.num_hosts > 1:
        parts.append(f"{run.num_hosts} hosts")
    parts += [run.backend, duration(report.duration_ns), f"{run.times} times" if run.times else ""]
    parts.append("cut off" if run.truncated else "" if code is None else f"exit code {code}")
    argv = f"<p><code>$ {_e(shlex.join(run.argv))}</code></p>" if run.argv else ""
    shown = " · ".join(part for part in parts if part)
    return f"<h1>{_e(run.name or source)}<small>{_e(shown)}</small></h1>{argv}"


def _facts(report: Report) -> str:
    steps, pipeline = report.steps, report.pipeline
    facts: list[tuple[str, str]] = []
    if steps:
        middle = median(s.duration_ns for s in steps)
        facts.append((duration(middle), f"median of {plural(len(steps), 'step')}"))
    if pipeline is not None and pipeline.bubble_fraction is not None:
        implied = pipeline.implied_fraction
        beside = "" if implied is None else f" · implied {percent(implied)}"
        facts.append((percent(pipeline.bubble_fraction), f"bubble{beside}"))
    if losses := finite_losses(report):
        facts.append((number(losses[-1]), f"loss, from {number(losses[0])}"))
    if broken := report.not_finite:
        facts.append((broken.value, f"loss: {not_finite_text(broken)}"))
    skews = [r.skew_ns for r in report.collectives if r.skew_ns is not None]
    if skews:
        facts.append(
            (duration(median(skews)), f"median skew of {plural(len(skews), 'collective')}")
        )
    found = [f.severity for f in report.findings]
    errors = f", {plural(found.count('error'), 'error')}" if "error" in found else ""
    facts.append((str(len(found)), f"finding{'' if len(found) == 1 else 's'}{errors}"))
    cells = "".join(f'<div class="fact"><b>{_e(b)}</b><span>{_e(s)}</span></div>' for b, s in facts)
    return f'<div class="facts">{cells}</div>'


def _findings(report: Report, drawn: Sequence[Moment]) -> str:
    found = report.findings
    if not found:
        return section("Findings", f'<div class="finding good">{_e(nothing(report))}</div>')
    linked = {one.finding for one in drawn}
    items = []
    for at, f in enumerate(found[:MAX_FINDINGS]):
        when = _e(_when(report, f.t_ns))
        when = f'<a href="#at-{at}">{when}</a>' if at in linked else when
        items.append(
            f'<div class="finding {_e(f.severity)}"><b>{_e(f.severity)} · {_e(f.kind)}</b>'
            f'{_e(f.text)} <small>{when}</small><p class="dim">{_e(f.advice)}</p></div>'
        )
    return section("Findings", "".join(items) + more(found, MAX_FINDINGS))


def _when(report: Report, t_ns: int) -> str:
    return f"at {duration(max(0, t_ns - report.begin_ns))}"


def _timeline(report: Report, drawn: Sequence[Moment]) -> str:
    """Draw each moment; a finding's link leads to its own."""
    body = ""
    keys = [key(f"lane {style}", word) for style, word in charts.LANE_KEYS]
    for one in drawn:
        of = None if one.finding is None else report.findings[one.finding]
        name, culprits = (f"step {one.step}", ()) if of is None else (of.kind, of.culprits)
        until = duration(max(0, one.t1_ns - report.begin_ns))
        caption = f"{name}, {duration(one.t1_ns - one.t0_ns)} up to {until}. "
        picture = charts.moment(one, culprits, report.begin_ns)
        body += f'<div id="at-{one.finding}">{figure(picture, caption, keys)}</div>'
    return section("Timeline", body) if body else ""


def _traffic(step: StepTraffic | None) -> str:
    """Table what a rank sends in a step, by axis of the mesh and op."""
    if step is None or not step.ops:
        return ""
    heads = ("axis", "op", "groups", "in a step", "each", "a rank sends", "source")
    rows = [
        (op.axis, op.op, f"{len(op.groups)} of {len(op.groups[0]) if op.groups else 0} ranks",
         f"{op.number:.4g}", size(op.payload / op.number if op.number else 0), size(op.sent),
         op.source)
        for op in step.ops[:MAX_ROWS]
    ]  # fmt: skip
    body = table(heads, rows, left=2) + more(step.ops, MAX_ROWS)
    return section("Traffic", body, f"means of steps {step.first}–{step.last}")


def _pipeline(pipeline: PipelineReport | None) -> str:
    if pipeline is None:
        return ""
    shape = f"{pipeline.num_stages} stages, {pipeline.num_microbatches} microbatches"
    figures = (
        ("measured", pipeline.bubble_fraction), ("implied", pipeline.implied_fraction),
        ("bound", pipeline.bound_fraction),
    )  # fmt: skip
    shares = [f"{word} {percent(figure)}" for word, figure in figures if figure is not None]
    body = f"<p>Bubble: {_e(', '.join(shares))}.</p>" if shares else ""
    if (step := pipeline.typical) is not None:
        kinds = sorted({a.kind for row in step.ranks for a in row.actions} & KIND_WORD.keys())
        keys = [key(f"act {kind}", KIND_WORD[kind]) for kind in kinds] + _idle_keys(pipeline.use)
        caption = f"Step {step.step}, a typical one: the plan (thin) over what ran. "
        body += figure(charts.schedule(step, pipeline.num_stages), caption, keys)
    if pipeline.free:
        caption = f"Where the window of {plural(len(pipeline.free), 'complete step')} went. "
        keys = [key("busy", "compute"), *_idle_keys(pipeline.use)]
        body += "<p></p>" + figure(charts.ledger(pipeline.use), caption, keys)
    return section("Pipeline", body, f"{pipeline.schedule or 'schedule not known'} · {shape}")


def _idle_keys(use: Sequence[RankUse]) -> list[str]:
    return [key(f"idle {cause}", CAUSE_WORD[cause]) for cause in (use[0].idle if use else ())]


def _steps(report: Report) -> str:
    if not report.steps:
        return ""
    body = figure(charts.steps(report.steps), "Longest over ranks. ", [])
    if shares := phase_shares([step for step in report.steps if step.phases]):
        text = ", ".join(f"{name} {percent(share)}" for name, share in shares)
        body += f'<p class="dim">Of the steps, mean over ranks: {_e(text)}.</p>'
    return section("Steps", body)


def _collectives(report: Report) -> str:
    found = by_op(report.collectives)
    if not found:
        return ""
    heads = ("group", "op", "number", "bytes", "skew", "wait", "transfer", "busbw", "not matched")
    odd = [(count(kind.num_odd) if kind.num_odd else "",) for kind in found]
    rows = [(*row, *also) for row, also in zip(op_rows(found[:MAX_ROWS]), odd, strict=False)]
    body = table(heads, rows, left=2) + more(found, MAX_ROWS)
    if any(row.last_rank is not None for row in report.collectives):
        picture = charts.last_ranks(report.collectives, [rank.now.rank for rank in report.ranks])
        caption = "Who came last, and what the others waited for it. "
        body += "<p></p>" + figure(picture, caption, [])
    return section("Collectives", body, "medians")


def _p2p(report: Report) -> str:
    found = by_edge(report.p2p)
    if not found:
        return ""
    heads = ("edge", "number", "bytes", "in all", "wait", "transfer")
    rows = edge_rows(found[:MAX_ROWS])
    body = table(heads, rows, left=1) + more(found, MAX_ROWS)
    return section("Point to point", body, "medians")


def _memory(report: Report) -> str:
    known = [row for row in report.memory if any(n is not None for n in charts.sizes(row))]
    if not known:
        return ""
    shown = shown_rows(report, known, lambda row: row.rank, charts.MAX_RANKS)
    keys = [key(f"mem {letter}", word) for word, letter in charts.MEMORY]
    caption = "Newest sizes (activations: peak). A bar across: expected at the model's ZeRO level. "
    return section("Memory", figure(charts.memory(shown), caption, keys))


def _ranks(report: Report) -> str:
    heads, *rows = rank_rows(shown_rows(report, report.ranks, lambda row: row.now.rank, MAX_ROWS))
    body = table(heads, rows, left=2) + more(report.ranks, MAX_ROWS)
    return section("Ranks", body) if rows else ""


def _foot(report: Report, source: str) -> str:
    wall_ns = report.run.wall_ns
    begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_ns / 1e9))
    when = f"Run of {begun}. " if wall_ns else ""
    text = (
        f"{when}{count(report.num_records)} records from {source}. Collectives: times of unlike "
        f"sources are not mixed; figures marked – are not known."
    )
    return f"<footer>{_e(text)}</footer>"
