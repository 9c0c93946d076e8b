"""A run's report as plain text: 80 columns, no colour, the answer first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from textwrap import wrap
from typing import Final

from pardbg.render.draw.severity import SIGN
from pardbg.render.reports.sections import (
    Json,
    bandwidth_lines,
    loss_text,
    middle,
    overlap_lines,
    path_lines,
    peak_lines,
    stage_lines,
    wait_lines,
)
from pardbg.words import binary_size, busbw, count, duration, percent, plural, size

WIDTH: Final = 80
MAX_RANKS: Final = 32
"""Rows per table; more ranks are said to be more."""
_IDLE: Final = (
    ("warmup", "warm"), ("dependency", "dep"), ("communication", "comm"),
    ("host", "host"), ("cooldown", "cool"),
)  # fmt: skip


def text(report: Json) -> str:
    """The report of ``pardbg.analysis.answers.report.report`` for a terminal."""
    sections = (
        _run(report), _findings(report), _ranks(report), _pipeline(report), _steps(report),
        _collectives(report), _p2p(report), _memory(report),
    )  # fmt: skip
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def _run(report: Json) -> list[str]:
    run, ranks = report["run"], report["ranks"]
    parts = [run["name"] or "run", plural(len(ranks), "rank")]
    nodes = len({rank.get("node") for rank in ranks})
    if max(nodes, run["num_hosts"]) > 1:  # several launchers may share a host
        parts.append(f"{nodes} nodes" if nodes > run["num_hosts"] else f"{run['num_hosts']} hosts")
    if run["backend"]:
        parts.append(run["backend"])
    steps = report["steps"]
    if steps:
        middle = median(s["duration_ns"] for s in steps)
        parts.append(f"{plural(len(steps), 'step')} of {duration(middle)}")
    parts.append(duration(run["duration_ns"]))
    code = run["exit_code"]
    parts.append(_ended(report) if code is None else f"exit code {code}")
    lines = ["  ".join(parts)]
    if run["argv"]:
        lines += _wrapped("$ " + " ".join(run["argv"]), "  ")
    if loss := loss_text(report):
        lines.append(f"loss {loss}")
    if run.get("next_part") or run.get("part", 1) > 1:
        goes_on = f"; it goes on in {run['next_part']}" if run.get("next_part") else ", its last"
        lines.append(f"Part {run['part']} of a recording{goes_on}.")
    if run["truncated"]:
        lines.append("The file ends early: this is what was recorded up to there.")
    return lines


def _ended(report: Json) -> str:
    """How a run without an exit code stands."""
    if report["run"]["truncated"]:
        return "cut off"
    if report["run"]["live"]:
        return "still running"
    states = {rank["state"] for rank in report["ranks"]}
    return "killed" if states and states <= {"lost", "ended"} else "end not known"


def _findings(report: Json) -> list[str]:
    found = report["findings"]
    if not found:
        return _titled("Findings", ["nothing wrong was seen"])
    lines: list[str] = []
    for finding in found[:12]:
        mark = SIGN[finding["severity"]][0]
        text, where = finding["text"], finding["where"]
        place = f" Place: {where}." if where and where not in text else ""
        lines += _wrapped(f"{mark} {text}{place} {finding['advice']}".rstrip(), "  ")
    if len(found) > 12:
        lines.append(f"· and {len(found) - 12} more (--json has all)")
    return _titled("Findings", lines)


def _ranks(report: Json) -> list[str]:
    rows = [("rank", "host", "pid", "state", "steps", "dropped", "agent")]
    for rank in report["ranks"][:MAX_RANKS]:
        rows.append(
            (
                str(rank["rank"]), rank["host"][:18], str(rank["pid"]), rank["state"],
                str(rank["num_steps"]), str(rank["dropped_records"]),
                percent(rank["agent_overhead_fraction"], 2),
            )
        )  # fmt: skip
    lines = _table(rows, left=(1, 3)) + _more(report["ranks"])
    return _titled("Ranks", lines if len(rows) > 1 else ["none seen"])


def _pipeline(report: Json) -> list[str]:
    pipeline = report["pipeline"]
    if pipeline is None:
        return []
    measured, implied = pipeline["bubble_fraction"], pipeline["implied_fraction"]
    title = f"Pipeline  {pipeline['schedule'] or 'without a schedule object'}"
    shape = f"{pipeline['num_stages']} stages, {pipeline['num_microbatches']} microbatches"
    lines = [f"{shape}, {plural(len(pipeline['steps']), 'complete step')}"]
    if pipeline["num_older_steps"]:
        lines[0] += (
            f" (the newest; {count(pipeline['num_older_steps'])} older ones are not in here)"
        )
    if measured is None:
        return _titled(title, lines)
    said = [
        f"bubble {percent(measured)}", f"implied {percent(implied)}",
        f"bound {percent(pipeline['bound_fraction'])}",
    ]  # fmt: skip
    if implied is not None:
        said.append(f"excess {percent(measured - implied)}")
    free = [step for step in pipeline["steps"] if not step["held_ns"]]
    held = len(pipeline["steps"]) - len(free)
    if free and held:
        lines[0] += f" ({held} left out: held by the debugger)"
    lines += ["   ".join(said), *path_lines(pipeline["critical_path"]), ""]
    lines += [*_idle_table(free or pipeline["steps"]), *peak_lines(pipeline["peaks"])]
    lines += [*wait_lines(pipeline["waits"]), "", *stage_lines(pipeline["stages"])]
    return _titled(title, lines + _others(report))


def _others(report: Json) -> list[str]:
    """All pipelines of a run that has several; the figures above are the first one's."""
    pipelines = report.get("pipelines", ())
    if len(pipelines) < 2:
        return []
    rows = [("pipeline", "ranks", "bubble")]
    for one in pipelines[:MAX_RANKS]:
        ranks = ",".join(map(str, one["ranks"]))
        rows.append((one["label"], ranks, percent(one["bubble_fraction"])))
    known = [one for one in pipelines if one["bubble_fraction"] is not None]
    worst = max(known, key=lambda one: float(one["bubble_fraction"]), default=None)
    said = f"the figures above are those of {pipelines[0]['label']}"
    if worst is pipelines[0]:
        said += ", which has the largest bubble"
    elif worst is not None:
        said += f"; the largest bubble is that of {worst['label']}"
    return ["", *_table(rows, left=(0, 1)), said]


def _idle_table(steps: Sequence[Json]) -> list[str]:
    """Per rank, summed over the complete steps: busy and idle by cause, of the window."""
    window = sum(step["window_ns"] for step in steps)
    if not window:
        return []
    sums: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    flight: dict[int, tuple[int, int | None]] = {}
    for step in steps:
        for row in step["ranks"]:
            total = sums[row["rank"]]
            total["busy"] += row["busy_ns"]
            for cause, _ in _IDLE:
                total[cause] += row["idle_ns"][cause]
            before = flight.get(row["rank"], (0, None))[0]
            flight[row["rank"]] = (max(before, row["max_in_flight"]), row["in_flight_bound"])
    rows = [("rank", "busy", "", *(short for _, short in _IDLE), "in flight")]
    for rank, total in list(sums.items())[:MAX_RANKS]:
        peak, bound = flight[rank]
        rows.append(
            (
                str(rank), percent(total["busy"] / window), _bar(total["busy"] / window),
                *(percent(total[cause] / window) for cause, _ in _IDLE),
                f"{peak}/{bound}" if bound is not None else str(peak),
            )
        )  # fmt: skip
    return _table(rows, left=(2,)) + _more(list(sums))


def _steps(report: Json) -> list[str]:
    """Where a step's time goes, by phase."""
    steps = [s for s in report["steps"] if s["phases"]]
    if not steps:
        return []
    sums: dict[str, int] = defaultdict(int)
    for step in steps:
        for phase, time in step["phases"].items():
            sums[phase] += time
    whole = max(1, sum(step["duration_ns"] for step in steps))
    rows = [("phase", "of the steps", "")]
    for phase, time in sorted(sums.items(), key=lambda item: -item[1]):
        rows.append((phase, percent(time / whole), _bar(time / whole)))
    return _titled("Phases", _table(rows[:9], left=(0, 2)))


def _collectives(report: Json) -> list[str]:
    by_op: dict[tuple[str, str], list[Json]] = defaultdict(list)
    for row in report["collectives"]:
        by_op[row["group"], row["op"]].append(row)
    if not by_op:
        return []
    rows = [("group", "op", "number", "bytes", "skew", "wait", "transfer", "busbw")]
    for (group, op), ops in sorted(by_op.items(), key=lambda item: -len(item[1]))[:16]:
        rows.append(
            (
                group, op, str(len(ops)), middle(ops, "bytes", size),
                middle(ops, "skew_ns", duration), middle(ops, "wait_ns", duration),
                middle(ops, "transfer_ns", duration), middle(ops, "busbw_gbps", busbw),
            )
        )  # fmt: skip
    lines = _table(rows, left=(0, 1))
    lines.append(_verdicts(report["collectives"]))
    beside = overlap_lines(report["overlap"])
    if beside:
        lines += ["", "per step, beside compute:", *beside]
    sizes = bandwidth_lines(report["bandwidth"])
    if len(sizes) > len(rows):
        lines += ["", "by size:", *sizes]
    return _titled("Collectives (medians)", lines)


def _p2p(report: Json) -> list[str]:
    edges: dict[tuple[int, int], list[Json]] = defaultdict(list)
    for row in report["p2p"]:
        edges[row["src"], row["dst"]].append(row)
    if not edges:
        return []
    rows = [("edge", "number", "bytes", "in all", "transfer")]
    for (src, dst), ops in sorted(edges.items())[:MAX_RANKS]:
        rows.append(
            (
                f"{src} → {dst}", str(len(ops)), middle(ops, "bytes", size),
                size(sum(op["bytes"] for op in ops)), middle(ops, "transfer_ns", duration),
            )
        )  # fmt: skip
    lines = _table(rows, left=(0,))
    lines.append(_verdicts(report["p2p"]))
    return _titled("Point to point (medians)", lines)


def _verdicts(rows: Iterable[Json]) -> str:
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        counts[row["verdict"]] += 1
    ordered = sorted(counts.items(), key=lambda item: (item[0] != "matched", item[0]))
    return ", ".join(f"{count} {verdict}" for verdict, count in ordered)


def _memory(report: Json) -> list[str]:
    names = (
        ("parameters_bytes", "params"), ("gradients_bytes", "grads"),
        ("optimizer_bytes", "optimizer"), ("activations_peak_bytes", "activations"),
        ("unattributed_bytes", "other"), ("expected_bytes", "expected"),
    )  # fmt: skip
    known = [row for row in report["memory"] if any(row[n] is not None for n, _ in names)]
    if not known:
        return []
    rows = [("rank", *(title for _, title in names))]
    for row in known[:MAX_RANKS]:
        rows.append((str(row["rank"]), *(binary_size(row[name]) for name, _ in names)))
    lines = _table(rows) + _more(known)
    lines.append("expected: the first three between steps, at the model's ZeRO level")
    return _titled("Memory", lines)


# ------------------------------------------------------------------ parts


def _titled(title: str, lines: Sequence[str]) -> list[str]:
    return [f"── {title} ".ljust(WIDTH, "─"), *lines]


def _table(rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> list[str]:
    """Columns as wide as needed; numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip()[:WIDTH])
    return lines


def _more(rows: Sequence[object]) -> list[str]:
    left = len(rows) - MAX_RANKS
    return [f"… and {left} more ranks (--json has all)"] if left > 0 else []


def _wrapped(line: str, indent: str) -> list[str]:
    return wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False)[:6] or [line[:WIDTH]]


def _bar(share: float) -> str:
    filled = round(max(0.0, min(1.0, share)) * 16)
    return "█" * filled + "░" * (16 - filled)
