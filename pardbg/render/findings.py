"""Findings in words: a brief line each, a list, and one in full."""

from __future__ import annotations

from collections.abc import Sequence

from pardbg.analysis.model import Finding, Snapshot
from pardbg.render import words
from pardbg.render.cells import (
    Line,
    Picture,
    Run,
    clean,
    clip,
    fit,
    line,
    selected,
    width,
    wrap,
)  # fmt: skip
from pardbg.render.empty import empty

SIGN = {"error": ("✗", "bad"), "warning": ("▲", "warn"), "info": ("i", "dim")}
_ORDER = {"error": 0, "warning": 1, "info": 2}


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """The worst first, then the newest."""
    return sorted(findings, key=lambda f: (_ORDER[f.severity], -f.t_ns))


def brief(findings: Sequence[Finding], cells: int) -> list[Line]:
    """One line each."""
    lines = []
    for finding in ordered(findings):
        sign, style = SIGN[finding.severity]
        kind = f"{clip(clean(finding.kind), 18)}  "
        text = clip(clean(finding.text), cells - width(kind) - 2)
        lines.append(line(Run(f"{sign} ", style), Run(kind, "strong"), Run(text)))
    return lines


def findings(snapshot: Snapshot, cells: int, rows: int, at: int = 0) -> Picture:
    """The list, worst first, each with its text in full, its ranks and its place."""
    found = ordered(snapshot.findings)
    if not found:
        why = "No rank is missing, no operation disagrees, no stage stands out."
        return empty(cells, rows, "Nothing found.", why)
    body: list[Line] = []
    places: list[int] = []
    focus = 0
    for index, finding in enumerate(found):
        focus = len(body) if index == at else focus
        lines = _finding(finding, snapshot, cells)
        if index == at:
            lines = [fit(selected(row), cells, "+sel") for row in lines]
        body += [*lines, ()]
        places += [index] * (len(lines) + 1)
    title = f"  {words.plural(len(found), 'finding')}, the worst first"
    return Picture(((), line(Run(title, "dim")), ()), tuple(body), focus=focus, rows=tuple(places))


def _finding(finding: Finding, snapshot: Snapshot, cells: int) -> list[Line]:
    sign, style = SIGN[finding.severity]
    when = words.offset(max(0, finding.t_ns - snapshot.t_begin_ns), 1e8)
    facts = [f"at {when}"]
    if finding.culprits:
        facts.append(f"culprit rank {words.rank_set(finding.culprits)}")
    elif finding.ranks:
        facts.append(f"rank {words.rank_set(finding.ranks)}")
    if finding.group is not None:
        number = "" if finding.seq is None else f" #{finding.seq}"
        facts.append(f"{clean(finding.group)}{number}")
    if finding.where:
        facts.append(clean(finding.where))
    head = line("  ", Run(f"{sign} ", style), Run(clean(finding.kind), "strong"),
                Run("  " + " · ".join(facts), "dim"))  # fmt: skip
    return [head, *(line(Run("    " + text)) for text in wrap(clean(finding.text), cells - 8, 6))]
