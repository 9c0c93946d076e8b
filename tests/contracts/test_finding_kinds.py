"""Kinds of findings are stable identifiers: each that the code can say is in docs/findings.md, and
no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from pardbg.analysis.comm.op_rows import Verdict
from pardbg.analysis.findings import hangs, mismatches, rehearsed

ROOT = Path(__file__).parents[2]
CODE = ROOT / "pardbg" / "analysis" / "findings"


def made() -> set[str]:
    """Kinds that are made of parts: of a collective's verdict, and those that have advice because
    of what ranks wait for each other in."""
    verdicts = {text.replace(" ", "-") for text in get_args(Verdict) if text.endswith("mismatch")}
    advised = hangs._ADVICE.keys() | rehearsed._ADVICE.keys() | mismatches.MESSAGE_ADVICE.keys()
    return verdicts | advised


def said_in_code() -> set[str]:
    source = "\n".join(path.read_text(encoding="utf-8") for path in CODE.rglob("*.py"))
    plain = re.findall(r'\bkind="([a-z0-9-]+)"', source)
    chosen = re.findall(r'\bkind="([a-z-]+)" if .* else "([a-z-]+)"', source)
    first = re.findall(r'\bFinding\(\s*"([a-z0-9-]+)"', source)
    reasons = re.findall(r'Reason\(\s*"([a-z-]+)"', source)
    return {*plain, *first, *(kind for pair in chosen for kind in pair), *reasons, *made()}


def documented() -> set[str]:
    lines = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8").splitlines()
    cells = [line.split("|")[1] for line in lines if line.startswith("| `")]
    return {kind for cell in cells for kind in re.findall(r"`([a-z0-9-]+)`", cell)}


def test_each_kind_is_documented_and_no_other() -> None:
    assert said_in_code() == documented()
