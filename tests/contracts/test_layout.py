"""The house stays readable: a dozen modules a folder, and one module name means one thing."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from tests.conftest import LONG

ROOT = Path(__file__).parents[2]
TOPS = (ROOT / "pardbg", ROOT / "agent" / "pardbg_agent")
MODULES = 14
"""Maximum number of modules in a folder, without ``__init__``."""
RECIPES = ROOT / "pardbg" / "lab" / "recipes"
"""Training programs: one file each, named as people name the kind of parallelism."""
FOLDERS = sorted(
    {path.parent for top in TOPS for path in top.rglob("*.py")} - {RECIPES, RECIPES / "faults"}
)
SAME_THING = {
    # What is computed, how it is drawn, and the screen that shows it.
    "debug", "memory", "output", "pipeline", "stacks", "timeline",
    "traffic",
    # The agent has its own few: it imports nothing of pardbg.
    "words",
}  # fmt: skip
AT_THE_ROOT = {
    ".ci", ".github", ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "CONTRIBUTING.md",
    "LICENSE", "Makefile", "README.md", "SECURITY.md", "agent", "constraints.txt", "deploy", "docs",
    "mkdocs.yml", "pardbg", "pyproject.toml", "sessions", "tests",
}  # fmt: skip
"""Whatever else a program left here that was tried in the checkout is not the project's."""
PER_FOLDER = {"__init__", "__main__", "page"}
"""Names that say "of this folder"."""


def in_recipes(path: Path) -> bool:
    return RECIPES in path.parents


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_folder_has_a_dozen_modules(folder: Path) -> None:
    names = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
    assert len(names) <= MODULES, names


def same_names() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for top in TOPS:
        for path in sorted(top.rglob("*.py")):
            if not in_recipes(path):
                found[path.stem].append(str(path.relative_to(ROOT)))
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def test_nothing_is_kept_that_a_program_left_here() -> None:
    argv = ["git", "ls-files", "--error-unmatch", ":/"]
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    assert {line.split("/")[0].strip('"') for line in listed.stdout.splitlines()} == AT_THE_ROOT


def test_a_module_name_means_one_thing() -> None:
    same = same_names()
    assert {n: p for n, p in same.items() if n not in SAME_THING | PER_FOLDER} == {}


def test_no_name_is_allowed_for_nothing() -> None:
    assert set(same_names()) >= SAME_THING


def test_files_that_are_left_to_the_long_run_exist() -> None:
    assert LONG and not [name for name in LONG if not (ROOT / "tests" / name).is_file()]
