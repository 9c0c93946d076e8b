"""A name that begins with an underscore is its module's own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.contracts.test_sizes import FILES, ROOT
from tests.contracts.trees import parsed


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def taken(tree: ast.Module) -> Iterator[str]:
    """Private names of other modules of pardbg, imported or reached through what was imported."""
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    ours = [n for n in imports if (n.module or "").startswith("pardbg")]
    names = {alias.asname or alias.name for node in ours for alias in node.names}
    yield from (a.name for node in ours for a in node.names if is_private(a.name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            named_tuple = node.attr in ("_make", "_fields")
            if node.value.id in names and is_private(node.attr) and not named_tuple:
                yield ast.unparse(node)


def test_no_module_uses_private_names_of_others() -> None:
    found = {str(path.relative_to(ROOT)): list(taken(parsed(path))) for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}


def test_they_would_be_seen() -> None:
    source = (
        "from pardbg.session import reader\nfrom pardbg.words import _a, b\nreader._key(b._make)"
    )
    assert list(taken(ast.parse(source))) == ["_a", "reader._key"]
