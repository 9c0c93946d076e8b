"""Pages and drawing take values of the analysis and never ask it: no function of it is imported
there. (``tests/ui/test_ui_thread.py`` looks at what really runs.)"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.trees import parsed

ROOT = Path(__file__).parents[2] / "pardbg"
DRAWING = [
    *(ROOT / "render" / "draw").rglob("*.py"),
    *(ROOT / "render" / "frame").rglob("*.py"),
    *(ROOT / "render" / "pages").rglob("*.py"),
    *(ROOT / "ui" / "main").rglob("*.py"),
    *(ROOT / "ui" / "screens").rglob("*.py"),
    *(ROOT / "ui" / "widgets").rglob("*.py"),
]
TEXT_ONLY = {
    "pardbg.analysis.pipeline.dependencies.parse",  # "2B5" into its three parts
    # of a tensor's name and kind, and of what a difference looks like
    "pardbg.analysis.findings.kinds.difference_words.difference_text",
    "pardbg.analysis.findings.kinds.difference_words.tensor_text",
    "pardbg.analysis.findings.kinds.difference_words.trial_text",
    "pardbg.analysis.hangs.stacks.is_user",  # of a file's name: whose code it is
}


def taken(path: Path) -> Iterator[str]:
    """Dotted names that a module takes from the analysis or the store, wherever it imports them."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module.startswith(("pardbg.analysis", "pardbg.store")):
                yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("pardbg.analysis"))


def is_value(dotted: str) -> bool:
    """A class, a type or a constant; not a function, not a module."""
    module, _, name = dotted.rpartition(".")
    found = getattr(importlib.import_module(module), name, None)
    return not (found is None or inspect.ismodule(found) or inspect.isroutine(found))


@pytest.mark.parametrize("path", DRAWING, ids=lambda path: str(path.relative_to(ROOT)))
def test_drawing_takes_values_and_no_functions_of_the_analysis(path: Path) -> None:
    asked = [name for name in taken(path) if name not in TEXT_ONLY and not is_value(name)]
    assert not asked, "let the page want it (ui.engine.feed.Want) and the engine ask"


def test_a_function_of_the_analysis_would_be_seen(tmp_path: Path) -> None:
    source = tmp_path / "page.py"
    source.write_text(
        "from pardbg.analysis.pipeline.in_flight import Peak, peaks\n"
        "from pardbg.analysis.pipeline import play\n"
        "from pardbg.analysis.pipeline.values import CAUSES\n"
    )
    assert [name for name in taken(source) if not is_value(name)] == [
        "pardbg.analysis.pipeline.in_flight.peaks",
        "pardbg.analysis.pipeline.play",
    ]
