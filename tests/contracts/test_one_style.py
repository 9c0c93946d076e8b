"""Durations, sizes and shares are formatted in ``words`` alone: there is no second style."""

from __future__ import annotations

import ast
import re
from itertools import pairwise

from tests.contracts.test_sizes import FILES, ROOT
from tests.contracts.trees import parsed

UNIT = re.compile(r" ?(ns|us|µs|ms|min|[kKMGT]i?B|%)(?!\w)| (s|h|seconds|minutes|hours)(?!\w)")
RECIPES = ROOT / "pardbg" / "lab" / "recipes"
"""Training programs of their own: they know nothing of pardbg."""


def with_unit(tree: ast.Module) -> list[str]:
    """The f-strings that write a unit behind a value themselves."""
    found = []
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)):
        for value, after in pairwise([*node.values, ast.Constant("")]):
            text = str(after.value) if isinstance(after, ast.Constant) else ""
            if isinstance(value, ast.FormattedValue) and (UNIT.match(text) or _percent(value)):
                found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def _percent(value: ast.FormattedValue) -> bool:
    return value.format_spec is not None and "%" in ast.unparse(value.format_spec)


def test_no_unit_is_written_elsewhere() -> None:
    looked_at = [p for p in FILES if p.stem != "words" and RECIPES not in p.parents]
    assert len(looked_at) > 300
    found = {str(path.relative_to(ROOT)): with_unit(parsed(path)) for path in looked_at}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_a_unit_is_seen() -> None:
    said = 'f"{a:.1f} ms {b} s, {c}MiB {d:.0%} {e}%"', 'f"{a} msgs {b}s {c} MBs"'
    assert [len(with_unit(ast.parse(text))) for text in said] == [5, 0]
