"""Facts of findings, as tests compare them."""

from __future__ import annotations

from typing import Any

from pardbg.analysis.findings.finding import Finding


def facts(finding: Finding, *names: str) -> Any:
    """Return fields of a finding's facts: the value of one, else a tuple."""
    values = tuple(getattr(finding.facts, name) for name in names)
    return values[0] if len(values) == 1 else values
