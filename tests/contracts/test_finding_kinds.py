"""Kinds of findings are stable identifiers: each that the code can say is in docs/findings.md, and
no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = ROOT / "pardbg" / "analysis" / "findings"
MADE = {
    # From a collective's verdict, and from what ranks wait for each other in.
    "op-mismatch", "size-mismatch", "dtype-mismatch", "root-mismatch",
    "unpaired-send", "unpaired-recv", "deadlock", "p2p-cycle",
    "p2p-tag-mismatch", "p2p-size-mismatch", "p2p-dtype-mismatch",
}  # fmt: skip


def said_in_code() -> set[str]:
    source = "\n".join(path.read_text(encoding="utf-8") for path in CODE.rglob("*.py"))
    plain = re.findall(r'\bkind="([a-z0-9-]+)"', source)
    chosen = re.findall(r'\bkind="([a-z-]+)" if .* else "([a-z-]+)"', source)
    reasons = re.findall(r'Reason\(\s*"([a-z-]+)"', source)
    return {*plain, *(kind for pair in chosen for kind in pair), *reasons, *MADE}


def documented() -> set[str]:
    lines = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8").splitlines()
    cells = [line.split("|")[1] for line in lines if line.startswith("| `")]
    return {kind for cell in cells for kind in re.findall(r"`([a-z0-9-]+)`", cell)}


def test_each_kind_is_documented_and_no_other() -> None:
    assert said_in_code() == documented()
