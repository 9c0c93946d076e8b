"""A stranger's test: docstrings drawn at random, to be read without their functions.

    python -m tests.contracts.docstrings --seed N --count 100 [--under pardbg/hub]

A docstring passes if a reader who knows the words of docs/architecture.md understands it, and its
subject is a noun. Attribute docstrings count, too.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path

from tests.contracts.trees import parsed

ROOT = Path(__file__).parents[2]
TOPS = (ROOT / "pardbg", ROOT / "agent" / "pardbg_agent")


def docstrings(path: Path) -> Iterator[tuple[str, int, str]]:
    """(name, line, text) of each docstring in a module, those of attributes included."""
    tree = parsed(path)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, statement in zip([None, *body], body, strict=False):
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                text = statement.value.value
                if isinstance(text, str):
                    owner = node if before is None else before
                    yield name_of(owner), statement.lineno, " ".join(text.split())


def name_of(node: ast.AST) -> str:
    """Return what a docstring stands at: a definition, an assignment's target, or the module."""
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0])
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    return str(getattr(node, "name", "module"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--under", default="", help="only files below this path")
    words = parser.parse_args()
    paths = sorted(path for top in TOPS for path in top.rglob("*.py"))
    found = [
        (path.relative_to(ROOT), *rest)
        for path in paths
        if str(path.relative_to(ROOT)).startswith(words.under)
        for rest in docstrings(path)
    ]
    for path, name, line, text in random.Random(words.seed).sample(
        found, min(words.count, len(found))
    ):
        print(f"{path}:{line} {name}\n    {text}")


if __name__ == "__main__":
    main()
