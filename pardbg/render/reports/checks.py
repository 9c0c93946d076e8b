"""Results of checks: a line each, and JUnit's XML for CI."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from pardbg.analysis.answers.checks import AGGREGATES, NO, UNITS, Result
from pardbg.analysis.answers.metrics import METRICS
from pardbg.render.draw.cells import clean


def lines(results: Sequence[Result]) -> list[str]:
    """``ok    bubble<12%   measured 10.4% (p50 of 24 steps)``"""
    width = max(len(result.check.text) for result in results)
    return [
        f"{'ok  ' if result.ok else 'FAIL'}  {clean(result.check.text):<{width}}  {_said(result)}"
        for result in results
    ]


def _said(result: Result) -> str:
    return result.text if result.measured is None else f"measured {result.text}"


def metric_list() -> str:
    """Every metric with its unit, its aggregate and what it says."""
    rows = [("metric", "unit", "of", "taken", "what")]
    for metric in METRICS.values():
        units = "/".join(UNITS[metric.unit]) or "-"
        name = f"{metric.name}[…]" if metric.filter else metric.name
        rows.append((name, units, metric.over or "run", metric.aggregate, metric.doc))
        if metric.filter:
            rows.append(("", "", "", "", f"[…]: {metric.filter}"))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    made = [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[4]]).rstrip()
        for row in rows
    ]
    made += ["", f"aggregates: {AGGREGATES}, as in step.p95", f"short: {', '.join(NO)}"]
    return "\n".join(made)


def junit(results: Sequence[Result], session: str) -> str:
    """One test case per check."""
    failed = sum(not result.ok for result in results)
    cases = "\n".join(_case(result) for result in results)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuites><testsuite name="pardbg check" tests="{len(results)}" failures="{failed}" '
        f'errors="0" hostname={quoteattr(_plain(session))}>\n{cases}\n</testsuite></testsuites>\n'
    )


def _case(result: Result) -> str:
    head = f'<testcase classname="pardbg" name={quoteattr(_plain(result.check.text))}>'
    said = escape(_plain(_said(result)))
    if result.ok:
        return f"{head}<system-out>{said}</system-out></testcase>"
    return f"{head}<failure message={quoteattr(_plain(_said(result)))}>{said}</failure></testcase>"


def _plain(text: str) -> str:
    """What XML can hold."""
    return "".join(c if c.isprintable() else "?" for c in text)
