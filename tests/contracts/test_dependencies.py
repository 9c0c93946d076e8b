"""What is imported is declared, and what is declared is used."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from tests.contracts.trees import parsed

ROOT = Path(__file__).parents[2]
OURS = {"pardbg", "pardbg_agent"}
COMES_WITH = {"rich": "textual", "zstandard": "mcap"}
"""Imported though not declared: part of what a declared one offers."""
PROGRAMS = {"py-spy"}
"""Run, not imported."""
DEBUGPY = {"debugpy", "pydevd", "pydevd_tracing", "_pydevd_bundle", "_pydevd_sys_monitoring"}
OPTIONAL = {
    "torch", "pyarrow", "ortools", "mcp", "prometheus_client", "opentelemetry", "textual_serve",
    "aiohttp", "pytest", *DEBUGPY,
}  # fmt: skip
MODULE = {"pyzmq": "zmq", "pardbg-agent": "pardbg_agent"}
"""Where the import's name is another one."""


def imported(folder: Path) -> set[str]:
    return {name for path in folder.rglob("*.py") for name in top_levels(path)}


def top_levels(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def declared(distribution: str) -> set[str]:
    """Names of its dependencies, without those of extras."""
    needs = metadata.requires(distribution) or []
    return {re.split(r"[\s<>=!~;\[]", need)[0] for need in needs if "extra ==" not in need}


@pytest.mark.parametrize(
    ("distribution", "folder"),
    [("pardbg", ROOT / "pardbg"), ("pardbg-agent", ROOT / "agent" / "pardbg_agent")],
    ids=["pardbg", "pardbg-agent"],
)
def test_imports_and_declarations_agree(distribution: str, folder: Path) -> None:
    needs = {MODULE.get(name, name) for name in declared(distribution) - PROGRAMS}
    used = imported(folder) - sys.stdlib_module_names - OURS - OPTIONAL - {"sitecustomize"}
    used = {COMES_WITH.get(name, name) for name in used}
    assert used == needs - OURS
