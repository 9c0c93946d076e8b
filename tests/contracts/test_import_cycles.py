"""No circle of modules that import each other: each can be read, and imported, on its own.

An import inside a function counts as well: it puts a circle off, it does not undo it. So does one
for type checkers alone: who reads the module has to know both."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.trees import parsed

ROOT = Path(__file__).parents[2]
PACKAGES = {"pardbg": ROOT / "pardbg", "pardbg_agent": ROOT / "agent" / "pardbg_agent"}


def modules(package: str) -> dict[str, Path]:
    top = PACKAGES[package]
    found = {}
    for path in sorted(top.rglob("*.py")):
        parts = path.relative_to(top.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(node: ast.AST, known: set[str]) -> Iterator[str]:
    """Modules of ``known`` that are imported at or below a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names if alias.name in known)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            for alias in child.names:
                full = f"{child.module}.{alias.name}"
                if full in known or child.module in known:
                    yield full if full in known else str(child.module)
        yield from imported(child, known)


def graph(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    known = set(trees)
    return {name: set(imported(tree, known)) - {name} for name, tree in trees.items()}


def circles(edges: dict[str, set[str]]) -> set[frozenset[str]]:
    """Sets of modules of which each reaches every other (strongly connected components)."""
    reach: dict[str, set[str]] = {}
    for start in edges:
        seen: set[str] = set()
        todo = [start]
        while todo:
            for name in edges[todo.pop()] - seen:
                seen.add(name)
                todo.append(name)
        reach[start] = seen
    return {
        frozenset(other for other in reach[name] if name in reach[other])
        for name in edges
        if name in reach[name]
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_no_modules_import_each_other(package: str) -> None:
    trees = {name: parsed(path) for name, path in modules(package).items()}
    assert {tuple(sorted(circle)) for circle in circles(graph(trees))} == set()


def test_a_circle_is_found_also_through_a_function_or_for_types_alone() -> None:
    sources = {
        "p.a": "from p import b",
        "p.b": "def f():\n    from p.c import g",
        "p.c": "from p.a import h",
        "p.d": "from p.a import h\nif TYPE_CHECKING:\n    import p.e",
        "p.e": "import p.d",
    }
    trees = {name: ast.parse(text) for name, text in sources.items()}
    assert circles(graph(trees)) == {frozenset({"p.a", "p.b", "p.c"}), frozenset({"p.d", "p.e"})}
