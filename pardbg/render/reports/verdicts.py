"""Short results as lines: checks (and JUnit XML for CI), a comparison of two runs, a
post-mortem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from xml.sax.saxutils import escape, quoteattr

from pardbg.analysis.answers.checks import AGGREGATES, NO, UNITS, Result, show
from pardbg.analysis.answers.diff import Diff, Row
from pardbg.analysis.answers.metrics import METRICS
from pardbg.analysis.findings.finding import Finding
from pardbg.render.draw.cells import clean, clip, left, right
from pardbg.render.draw.signs import SIGN
from pardbg.render.reports.sections import table
from pardbg.words import change as signed
from pardbg.words import duration, ranks_text


def check_lines(results: Sequence[Result]) -> list[str]:
    """Return ``ok bubble<12% measured 10.4% (p50 of 24 steps)``"""
    width = max(len(result.check.text) for result in results)
    return [
        f"{'ok  ' if result.ok else 'FAIL'}  {clean(result.check.text):<{width}}  {_text(result)}"
        for result in results
    ]


def _text(result: Result) -> str:
    return result.text if result.measured is None else f"measured {result.text}"


def metric_list() -> str:
    """Return a table of all metrics with unit, aggregate and meaning."""
    rows = [("metric", "unit", "of", "taken", "what")]
    for metric in METRICS.values():
        units = "/".join(UNITS[metric.unit]) or "-"
        name = f"{metric.name}[…]" if metric.filter else metric.name
        rows.append((name, units, metric.over or "run", metric.aggregate, metric.doc))
        if metric.filter:
            rows.append(("", "", "", "", f"[…]: {metric.filter}"))
    lines = table(rows, range(5))
    lines += ["", f"aggregates: {AGGREGATES}, as in step.p95", f"short: {', '.join(NO)}"]
    return "\n".join(lines)


def junit(results: Sequence[Result], session: str) -> str:
    """Return JUnit XML with one test case per check."""
    failed = sum(not result.ok for result in results)
    cases = "\n".join(_case(result) for result in results)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuites><testsuite name="pardbg check" tests="{len(results)}" failures="{failed}" '
        f'errors="0" hostname={quoteattr(_xml(session))}>\n{cases}\n</testsuite></testsuites>\n'
    )


def _case(result: Result) -> str:
    head = f'<testcase classname="pardbg" name={quoteattr(_xml(result.check.text))}>'
    text = escape(_xml(_text(result)))
    if result.ok:
        return f"{head}<system-out>{text}</system-out></testcase>"
    return f"{head}<failure message={quoteattr(_xml(_text(result)))}>{text}</failure></testcase>"


def _xml(text: str) -> str:
    """Return the text without characters that XML cannot hold."""
    return "".join(c if c.isprintable() else "?" for c in text)


_MARKS = {"more": "▲", "less": "▼", "same": "=", "few": "?", "only a": "A", "only b": "B"}


def diff_text(found: Diff) -> str:
    """Return the comparison as text, with the files' names for A and B."""
    changed = [row for row in found.rows if row.outcome not in ("same", "few")]
    same = [row for row in found.rows if row.outcome == "same"]
    few = [row for row in found.rows if row.outcome == "few"]
    lines = [f"A {clean(found.name_a)}   B {clean(found.name_b)}"]
    lines += [f"! {note}" for note in found.notes]
    lines += ["", _diff_head("changed beyond noise" if changed else "no difference beyond noise")]
    lines += [_diff_line(row) for row in changed]
    if same:
        lines += ["", _diff_head("no difference beyond noise")] if changed else []
        lines += [_diff_line(row) for row in same]
    if few:
        lines += ["", _diff_head("too few values to tell")]
        lines += [_diff_line(row) for row in few]
    if found.findings:
        lines += ["", f"findings{'A':>47}{'B':>12}"]
        for row in found.findings:
            name = f"  {row.severity} · {clean(row.kind)}"
            lines.append(f"{left(name, 48)}{_times(row.num_a):>7}{_times(row.num_b):>12}")
    return "\n".join(line.rstrip() for line in lines)


def _diff_head(title: str) -> str:
    return f"{title:<38}{'A':>12}{'B':>12}{'change':>12}"


def _diff_line(row: Row) -> str:
    cells = [right("–" if value is None else show(value, row.unit), 12) for value in (row.a, row.b)]
    name = left(clip(clean(row.name), 34), 36)
    return f"{_MARKS[row.outcome]} {name}{''.join(cells)}{right(change(row), 12)}{_noise(row)}"


def change(row: Row) -> str:
    """Return ``+12.3%``; for fractions the difference in points."""
    if row.a is None or row.b is None:
        return "only B" if row.a is None else "only A"
    if not (math.isfinite(row.a) and math.isfinite(row.b)):
        return "" if str(row.a) == str(row.b) else "not finite"
    if row.unit == "fraction":
        return signed(row.b - row.a, unit=" pt")
    if row.a == 0:
        return "" if row.b == 0 else "from 0"
    return signed(row.b / row.a - 1)


def _noise(row: Row) -> str:
    """Return the interval of the change; empty if there is none."""
    if row.low is None or row.high is None or not row.a:
        return ""
    if row.unit == "fraction":
        low, high = row.low, row.high
    else:
        low, high = row.low / row.a, row.high / row.a
    return f"  [{signed(low, unit='')}, {signed(high, unit='')}]"


def _times(number: int) -> str:
    return str(number) if number else "–"


@dataclass(slots=True)
class RankEnd:
    """End of a process, from the last records of its ring."""

    rank: int
    proc: str
    alive: bool
    step: int
    what: str
    open_op: str | None
    open_ns: int
    """Time that the op had been open at the last sign of life."""
    last_ns: int
    """Last sign of life, by the hub's clock."""
    from_ring: int
    """Number of records that only the ring had."""
    lost: int
    """Number of records that neither the file nor the ring has."""


def postmortem_lines(ranks: Sequence[RankEnd], findings: Sequence[Finding]) -> list[str]:
    """Return a line per rank, in order, in 80 columns."""
    lines = []
    newest = max((rank.last_ns for rank in ranks), default=0)
    for rank in sorted(ranks, key=lambda r: r.rank):
        doing = clean(rank.what or "host code")
        if rank.open_op:
            doing += f", {clean(rank.open_op)} open for {duration(rank.open_ns)}"
        lines.append(f"rank {rank.rank:<3} step {rank.step:<5} {doing}")
        text = f"{rank.from_ring:,} records from its ring"
        if rank.lost:
            text += f", {rank.lost:,} lost before them"
        if rank.alive:
            text += ", its process is alive"
        earlier = newest - rank.last_ns
        if earlier > 1_000_000_000:
            text += f", last sign of life {duration(earlier)} before the others'"
        lines.append(f"         {text}")
    silent = [rank.rank for rank in ranks if not rank.from_ring and not rank.alive]
    if silent:
        lines.append(f"{ranks_text(silent)}: the session file already had all of it")
    if findings:
        lines.append("")
    for finding in findings:
        mark = SIGN[finding.severity][0]
        lines += wrap(f"{mark} {finding.text}", 80, subsequent_indent="  ")
    return lines
