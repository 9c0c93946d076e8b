"""A run's report as one HTML page: no network, no script; findings first, then pictures."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from pardbg.analysis.base.values import CAUSES, PipelineStep
from pardbg.render.draw.svg import escape
from pardbg.render.pages.pipeline.schedule import CAUSE_WORD, KIND_WORD
from pardbg.render.reports import charts
from pardbg.render.reports.html_style import PATTERNS, STYLE
from pardbg.render.reports.sections import Json, finite_losses, middle, not_finite_text
from pardbg.words import busbw, count, duration, number, percent, plural, size

MAX_FINDINGS: Final = 40
MAX_ROWS: Final = 64


def page(report: Json, step: PipelineStep | None, source: str) -> str:
    """The page. ``step``: the pipeline step that is drawn; ``source``: the session's name."""
    sections = (
        _head(report, source), _facts(report), _findings(report), _pipeline(report, step),
        _steps(report), _collectives(report), _p2p(report), _memory(report), _ranks(report),
        _foot(report, source),
    )  # fmt: skip
    title = f"{report['run']['name'] or 'run'} · pardbg"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_e(title)}</title><style>{STYLE}</style></head>\n<body>{PATTERNS}<main>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main></body></html>\n"
    )


def _head(report: Json, source: str) -> str:
    run, ranks = report["run"], report["ranks"]
    parts = [plural(len(ranks), "rank")]
    if run["num_hosts"] > 1:
        parts.append(f"{run['num_hosts']} hosts")
    if run["backend"]:
        parts.append(run["backend"])
    parts.append(duration(run["duration_ns"]))
    code = run["exit_code"]
    parts.append("cut off" if run["truncated"] else "" if code is None else f"exit code {code}")
    argv = f"<p><code>$ {_e(' '.join(run['argv']))}</code></p>" if run["argv"] else ""
    shown = " · ".join(part for part in parts if part)
    return f"<h1>{_e(run['name'] or source)}<small>{_e(shown)}</small></h1>{argv}"


def _facts(report: Json) -> str:
    steps, pipeline = report["steps"], report["pipeline"]
    facts: list[tuple[str, str]] = []
    if steps:
        middle = median(s["duration_ns"] for s in steps)
        facts.append((duration(middle), f"median of {plural(len(steps), 'step')}"))
    if pipeline is not None and pipeline["bubble_fraction"] is not None:
        implied = pipeline["implied_fraction"]
        beside = "" if implied is None else f" · implied {percent(implied)}"
        facts.append((percent(pipeline["bubble_fraction"]), f"bubble{beside}"))
    if losses := finite_losses(report):
        facts.append((number(losses[-1]), f"loss, from {number(losses[0])}"))
    if broken := not_finite_text(report):
        facts.append((report["loss_not_finite"]["value"], f"loss: {broken}"))
    skews = [r["skew_ns"] for r in report["collectives"] if r["skew_ns"] is not None]
    if skews:
        facts.append(
            (duration(median(skews)), f"median skew of {plural(len(skews), 'collective')}")
        )
    found = [f["severity"] for f in report["findings"]]
    errors = f", {plural(found.count('error'), 'error')}" if "error" in found else ""
    facts.append((str(len(found)), f"finding{'' if len(found) == 1 else 's'}{errors}"))
    made = "".join(f'<div class="fact"><b>{_e(b)}</b><span>{_e(s)}</span></div>' for b, s in facts)
    return f'<div class="facts">{made}</div>'


def _findings(report: Json) -> str:
    found = report["findings"]
    if not found:
        return _section("Findings", '<div class="finding good">nothing wrong was seen</div>')
    made = [
        f'<div class="finding {_e(f["severity"])}"><b>{_e(f["severity"])} · {_e(f["kind"])}</b>'
        f"{_e(f['text'])}</div>"
        for f in found[:MAX_FINDINGS]
    ]
    if len(found) > MAX_FINDINGS:
        made.append(f'<p class="dim">and {len(found) - MAX_FINDINGS} more (--json has all)</p>')
    return _section("Findings", "".join(made))


def _pipeline(report: Json, step: PipelineStep | None) -> str:
    pipeline = report["pipeline"]
    if pipeline is None:
        return ""
    shape = f"{pipeline['num_stages']} stages, {pipeline['num_microbatches']} microbatches"
    said = [
        f"{word} {percent(pipeline[key])}"
        for word, key in (("measured", "bubble_fraction"), ("implied", "implied_fraction"),
                          ("bound", "bound_fraction"))
        if pipeline[key] is not None
    ]  # fmt: skip
    named = pipeline["schedule"] or "schedule not known"
    body = f"<p>Bubble: {_e(', '.join(said))}.</p>" if said else ""
    if step is not None:
        kinds = sorted({a.kind for row in step.ranks for a in row.actions} & KIND_WORD.keys())
        keys = [_key(f"act {kind}", KIND_WORD[kind]) for kind in kinds] + _idle_keys()
        caption = f"Step {step.step}, a typical one: the plan (thin) over what ran. "
        body += _figure(charts.schedule(step, pipeline["num_stages"]), caption, keys)
    free = [s for s in pipeline["steps"] if not s["held_ns"]] or pipeline["steps"]
    if free:
        caption = f"Where the window of {plural(len(free), 'complete step')} went. "
        keys = [_key("busy", "compute"), *_idle_keys()]
        body += "<p></p>" + _figure(charts.ledger(free), caption, keys)
    return _section("Pipeline", body, f"{named} · {shape}")


def _idle_keys() -> list[str]:
    return [_key(f"idle {cause}", CAUSE_WORD[cause]) for cause in CAUSES]


def _steps(report: Json) -> str:
    if not report["steps"]:
        return ""
    body = _figure(charts.steps(report["steps"]), "Longest over ranks. ", [])
    shares: dict[str, list[float]] = defaultdict(list)
    for step in report["steps"]:
        for phase, ns in step["phases"].items():
            shares[phase].append(ns / max(step["duration_ns"], 1))
    ordered = sorted(shares.items(), key=lambda item: -median(item[1]))
    if ordered:
        said = ", ".join(f"{name} {percent(median(part))}" for name, part in ordered[:8])
        body += f'<p class="dim">Of a step, mean over ranks: {_e(said)}.</p>'
    return _section("Steps", body)


def _collectives(report: Json) -> str:
    by_op: dict[tuple[str, str], list[Json]] = defaultdict(list)
    for row in report["collectives"]:
        by_op[row["group"], row["op"]].append(row)
    if not by_op:
        return ""
    heads = ("group", "op", "number", "bytes", "skew", "wait", "transfer", "busbw", "not matched")
    rows = []
    for (group, op), ops in sorted(by_op.items(), key=lambda item: -len(item[1]))[:MAX_ROWS]:
        odd = sum(row["verdict"] != "matched" for row in ops)
        rows.append(
            (
                group, op, count(len(ops)), middle(ops, "bytes", size),
                middle(ops, "skew_ns", duration), middle(ops, "wait_ns", duration),
                middle(ops, "transfer_ns", duration),
                middle(ops, "busbw_gbps", busbw), count(odd) if odd else "",
            )
        )  # fmt: skip
    body = _table(heads, rows, left=2)
    ranks = [rank["rank"] for rank in report["ranks"]]
    if any(row["last_rank"] is not None for row in report["collectives"]):
        picture = charts.last_ranks(report["collectives"], ranks)
        body += "<p></p>" + _figure(
            picture, "Who came last, and what the others waited for it. ", []
        )
    return _section("Collectives", body, "medians")


def _p2p(report: Json) -> str:
    edges: dict[tuple[int, int], list[Json]] = defaultdict(list)
    for row in report["p2p"]:
        edges[row["src"], row["dst"]].append(row)
    if not edges:
        return ""
    rows = [
        (
            f"{src} → {dst}", count(len(ops)), middle(ops, "bytes", size),
            size(sum(op["bytes"] for op in ops)), middle(ops, "transfer_ns", duration),
        )
        for (src, dst), ops in sorted(edges.items())[:MAX_ROWS]
    ]  # fmt: skip
    heads = ("edge", "number", "bytes", "in all", "transfer")
    return _section("Point to point", _table(heads, rows, left=1), "medians")


def _memory(report: Json) -> str:
    names = [name for name, _, _ in charts._MEMORY[:4]]
    known = [row for row in report["memory"] if any(row[n] is not None for n in names)]
    if not known:
        return ""
    keys = [_key(f"mem {letter}", word) for _, word, letter in charts._MEMORY[:4]]
    caption = "Newest sizes (activations: peak). A bar across: expected at the model's ZeRO level. "
    return _section("Memory", _figure(charts.memory(known), caption, keys))


def _ranks(report: Json) -> str:
    rows = [
        (
            str(r["rank"]), r["host"], str(r["pid"]), r["state"], count(r['num_steps']),
            count(r['dropped_records']), percent(r["agent_overhead_fraction"], 2),
        )
        for r in report["ranks"][:MAX_ROWS]
    ]  # fmt: skip
    heads = ("rank", "host", "pid", "state", "steps", "records lost", "agent")
    left = len(report["ranks"]) - MAX_ROWS
    more = f'<p class="dim">and {left} more (--json has all)</p>' if left > 0 else ""
    return _section("Ranks", _table(heads, rows, left=2) + more) if rows else ""


def _foot(report: Json, source: str) -> str:
    run = report["run"]
    begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run["wall_ns"] / 1e9))
    when = f"Run of {begun}. " if run["wall_ns"] else ""
    said = (
        f"{when}{count(run['num_records'])} records from {source}. Collectives: times of unlike "
        f"sources are not mixed; figures marked – are not known."
    )
    return f"<footer>{_e(said)}</footer>"


# ------------------------------------------------------------------ parts


def _section(title: str, body: str, beside: str = "") -> str:
    small = f"<small>{_e(beside)}</small>" if beside else ""
    return f"<section><h2>{_e(title)}{small}</h2>{body}</section>"


def _figure(picture: str, caption: str, keys: Sequence[str]) -> str:
    return f"<figure>{picture}<figcaption>{_e(caption)}{''.join(keys)}</figcaption></figure>"


def _key(style: str, word: str) -> str:
    box = f'<svg viewBox="0 0 13 13"><rect class="{style}" width="13" height="13"/></svg>'
    return f'<span class="key">{box}{_e(word)}</span>'


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        opened = [f'<{tag} class="l">' if at < left else f"<{tag}>" for at in range(len(row))]
        return "".join(f"{o}{_e(cell)}</{tag}>" for o, cell in zip(opened, row, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{cells("th", heads)}</tr>{body}</table></div>'


def _e(text: str) -> str:
    return escape(text)
