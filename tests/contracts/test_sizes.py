"""Modules and functions stay small enough to be read in one go."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULE_LINES = 500
FUNCTION_LINES = 60
FILES = sorted([*(ROOT / "pardbg").rglob("*.py"), *(ROOT / "agent" / "pardbg_agent").rglob("*.py")])


def functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every function's name and length in lines, without its decorators and docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node) is not None:
                doc = node.body[0]
                lines -= (doc.end_lineno or doc.lineno) - doc.lineno + 1
            yield node.name, lines


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_and_its_functions_are_short(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= MODULE_LINES
    long = [f"{name}: {n}" for name, n in functions(ast.parse(source)) if n > FUNCTION_LINES]
    assert not long


def test_the_length_of_a_function_leaves_its_docstring_out() -> None:
    tree = ast.parse('def f():\n    """One.\n\n    Two."""\n    return 1\n')
    # 5 lines from def to return, 3 of them docstring
    assert list(functions(tree)) == [("f", 2)]
