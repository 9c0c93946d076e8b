"""A docstring's subject is a noun, and a relative clause of it has a head: it makes sense alone."""

from __future__ import annotations

import re

from tests.contracts.docstrings import ROOT, TOPS, docstrings

SHOWN = (
    "pardbg/cli/",
    "pardbg/doors/tools.py",
    "pardbg/analysis/findings/kinds/",
)
"""Docstrings that are printed: help, descriptions of tools, a table of docs/findings.md."""
HEADLESS = re.compile(
    r"(?:(?:Return|Yield|Note|Take|Find|Keep|Say|Tell|Draw) )?(?:whether |how |how many )?"
    r"(?:what|who|whom|whose|whoever|it|its|they|their|them|those|nobody)(?![\w-])",
    re.IGNORECASE,
)


def is_headless(text: str) -> bool:
    return HEADLESS.match(text) is not None


def test_docstrings_make_sense_alone() -> None:
    paths = [path for top in TOPS for path in sorted(top.rglob("*.py"))]
    every = [(str(path.relative_to(ROOT)), *rest) for path in paths for rest in docstrings(path)]
    assert len(every) > 5000
    found = [
        f"{path}:{line} {name}: {text[:80]}"
        for path, name, line, text in every
        if not path.startswith(SHOWN) and is_headless(text)
    ]
    assert found == []


def test_a_headless_clause_is_seen() -> None:
    bad = (
        "What came.",
        "Return what it waits for.",
        "Whether it stands.",
        "Its ranks.",
        "Return them.",
    )
    good = "Ranks whose ops end.", "Print what to do.", "Return the op of a rank that waits."
    assert [text for text in (*bad, *good) if is_headless(text)] == list(bad)
