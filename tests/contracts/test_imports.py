"""The rooms' borders (CONTRIBUTING.md): as written imports, and as what really gets loaded."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def loaded(statement: str) -> set[str]:
    """Top-level packages in sys.modules of a fresh interpreter after the statement."""
    code = f"import sys\n{statement}\nprint(' '.join({{m.partition('.')[0] for m in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_import_contracts() -> None:
    """import-linter's contracts of pyproject.toml."""
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()",
         "--no-cache"],
        capture_output=True, text=True, timeout=280, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


VIEWER = (
    "pardbg.cli", "pardbg.lab.recipes.catalogue", "pardbg.session.reader",
    "pardbg.session.navigation.replay", "pardbg.analysis.answers.snapshot",
    "pardbg.analysis.answers.report", "pardbg.render.reports.text", "pardbg.ui.app",
    "pardbg.hub.client", "pardbg.hub.run.start",
)  # fmt: skip


def test_nothing_of_a_viewer_loads_torch() -> None:
    """Replay and report work where torch is not installed."""
    assert "torch" not in loaded(f"import {', '.join(VIEWER)}")


def test_the_command_line_starts_light() -> None:
    """``pardbg --help`` waits for no terminal toolkit and no numpy."""
    assert not loaded("import pardbg.cli") & {"torch", "textual", "numpy", "zmq", "mcap"}


def test_importing_the_agent_loads_nothing_heavy() -> None:
    """It is imported by every Python in the job's environment when PARDBG is set."""
    heavy = {"torch", "zmq", "numpy", "msgpack", "textual", "rich", "pardbg"}
    assert not loaded("import pardbg_agent") & heavy


def test_the_wire_layout_needs_the_standard_library_only() -> None:
    spec = importlib.util.find_spec("pardbg_agent.wire")
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add((node.module or "").partition(".")[0])
    assert names <= sys.stdlib_module_names


def test_a_users_own_agent_module_stays_importable(tmp_path: Path) -> None:
    """agent/ has no __init__.py, and nothing puts a package called ``agent`` on the path."""
    assert not (ROOT / "agent" / "__init__.py").exists()
    (tmp_path / "agent.py").write_text("WHOSE = 'user'\n", encoding="utf-8")
    code = "import agent; print(agent.WHOSE)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, cwd=tmp_path
    )
    assert done.stdout == "user\n", done.stderr
