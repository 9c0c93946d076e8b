"""Nothing but ``hub/removal`` may remove what came from outside: every other call that removes
or replaces a path is listed here, with what it may touch."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.contracts.trees import parsed

ROOT = Path(__file__).parents[2]
REMOVES = {"rmtree", "unlink", "remove", "rmdir", "removedirs", "rename", "replace", "renames"}
ALLOWED = {
    "hub/removal.py": "the one place",
    # files with a name of their own that the same function has just made
    "cli/common.py": "a fresh file or folder beside the output, made by the same function",
    "session/writer.py": "a resumed session takes its own place",
    "ui/commands/startup.py": "the console's history takes its own place",
    "ui/start_app.py": "a recording that the user asked twice to delete",
    "hub/run/config.py": "a JSON file takes its own place",
    "hub/hangs/inquiry.py": "a bundle that the same function has just made takes its name",
    "session/rotation.py": "the oldest part that this recording has written",
    "pardbg_agent/ring.py": "this process's own ring",
    "native/__main__.py": "a file that the same function has just made takes its name",
    "sim/extension.py": "a file that the same function has just made takes its name",
    "life/entering.py": "a file that the same function has just made takes its name",
    "control/posts.py": "this process's own board",
    "rehearse/rank_trace.py": "what an ended rank left in the directory made for this rehearsal",
}


def removals(path: Path) -> list[int]:
    """Lines that call something of REMOVES on ``os``, ``shutil`` or a path (not on a text)."""
    lines = []
    for node in ast.walk(parsed(path)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, owner = node.func.attr, node.func.value
        of_module = isinstance(owner, ast.Name) and owner.id in ("os", "shutil")
        of_path = name in ("unlink", "rmdir", "rmtree")
        if name in REMOVES and (of_module or of_path):
            lines.append(node.lineno)
    return lines


def test_nothing_else_removes() -> None:
    found = {}
    for folder in ("pardbg", "agent/pardbg_agent"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            lines = removals(path)
            if lines and not path.as_posix().endswith(tuple(ALLOWED)):
                found[str(path.relative_to(ROOT))] = lines
    assert not found, "these remove paths; use hub/removal, or say here why they may"


def test_the_check_sees_a_removal(tmp_path: Path) -> None:
    code = tmp_path / "x.py"
    code.write_text(
        "import os, shutil\nshutil.rmtree('a')\np.unlink()\nos.replace('a', 'b')\n"
        "'a'.replace('a', 'b')\n"
    )
    assert removals(code) == [2, 3, 4]
