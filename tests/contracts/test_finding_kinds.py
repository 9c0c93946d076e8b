"""Kinds of findings: one table has all of them, its documentation is made from it, and no detector
knows of another one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path

from pardbg.analysis.findings import kinds
from pardbg.analysis.findings.arbiter import EXPLAINS
from pardbg.analysis.findings.finding import Facts
from pardbg.analysis.findings.kinds.kinds_table import KINDS, ROWS, with_table
from pardbg.analysis.findings.wording import word
from tests.contracts.trees import parsed

ROOT = Path(__file__).parents[2]
CODE = ROOT / "pardbg" / "analysis" / "findings"
SHARED = {
    "finding", "wording", "exits", "misfits", "absences", "rehearsed", "windows", "kinds", "kind",
    "exchanged", "looked_at", "checksums", "system_calls",
}  # fmt: skip
"""Modules that detectors have in common: facts about the run, none of them a finding."""
COMPOSED = {"registry", "arbiter"}


def detectors() -> list[Path]:
    """Modules that make candidates."""
    paths = [p for p in CODE.rglob("*.py") if "kinds" not in p.parts and p.stem not in COMPOSED]
    return [p for p in paths if "Candidate(" in p.read_text(encoding="utf-8")]


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) that a module imports from the findings; no name: all of it."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((a.name, "") for a in node.names if "analysis.findings" in a.name)
        elif isinstance(node, ast.ImportFrom) and "analysis.findings" in (node.module or ""):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                is_module = (ROOT / whole.replace(".", "/")).with_suffix(".py").exists()
                yield (whole, "") if is_module else (node.module or "", alias.name)


def facts_classes() -> set[type[Facts]]:
    """All facts that can be put into words."""
    modules = [import_module(f"{kinds.__name__}.{p.stem}") for p in (CODE / "kinds").glob("*.py")]
    classes = {one for m in modules for one in vars(m).values() if isinstance(one, type)}
    return {one for one in classes if issubclass(one, Facts) and is_dataclass(one)
            and (one.text is not Facts.text or word(one, "text"))}  # fmt: skip


def test_the_documentation_of_kinds_is_made_from_their_table() -> None:
    """``python -m pardbg.analysis.findings.kinds.kinds_table docs/findings.md`` makes it anew."""
    page = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    assert page == with_table(page)


def test_each_kind_is_one_row_and_all_facts_are_of_a_kind() -> None:
    names = [name for row in ROWS for name in row.names]
    assert len(names) == len(set(names)) == len(KINDS)
    assert {facts for row in ROWS for facts in row.facts} == facts_classes()


def test_kinds_that_detectors_name_are_in_the_table() -> None:
    assert len(detectors()) > 12
    for path in detectors():
        named = set(re.findall(r'\bkind="([a-z0-9-]+)"', path.read_text(encoding="utf-8")))
        assert named <= KINDS.keys(), path


def test_no_detector_imports_another_one() -> None:
    """What explains what is the arbiter's."""
    for path in detectors():
        others = {module.split(".")[-1] for module, _ in imports(path)} - SHARED
        themes = {file.stem for file in (CODE / "kinds").glob("*.py")}
        assert others <= themes, path


def test_facts_that_explain_others_are_of_a_kind() -> None:
    known = facts_classes()
    assert all({*rule.causes, *rule.effects} <= known for rule in EXPLAINS)


def test_no_text_of_a_finding_is_read_back() -> None:
    """It is made once, of facts, and only shown."""
    reads = re.compile(r"\bfinding\.text\.(startswith|endswith|split|replace|removeprefix)\b"
                       r'|["\'] in \w*finding\.text|re\.\w+\(.*finding\.text')  # fmt: skip
    paths = [*(ROOT / "pardbg").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    assert [p for p in paths if reads.search(p.read_text(encoding="utf-8"))] == []
