"""The agent beside other releases of torch, each in an environment of its own, as a table:

    make torches VERSIONS="2.6 2.9"            (python -m tests.torches 2.6 2.9)

Per release: install it (gigabytes, removed afterwards; ``--keep DIR`` keeps and reuses the
environments there), build the C++ hot path, run the hooks' tests and every recipe both ways
(``--way``: one of them; ``--quick``: the unit tests, and some recipes). Exit code 1 if something
failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

ROOT: Final = Path(__file__).parents[2]
TESTS: Final = (
    "tests/unit/hooks", "tests/distributed/test_hooks_pipeline.py",
    "tests/distributed/test_hooks_training.py", "tests/distributed/test_hooks_compile.py",
    "tests/faults/test_waits.py",
)  # fmt: skip
QUICK: Final = "ddp", "1f1b", "interleaved", "zb", "zero1", "zero3", "tp", "moe"
WAYS: Final = {"C++": "native", "Python": "dispatcher"}
HEAD: Final = "| torch | way | tests | recipes | not there, and why |\n|---|---|---|---|---|"


@dataclass
class Row:
    """What one way of one release showed."""

    version: str
    way: str
    tests: str = "–"
    recipes: str = "–"
    missing: list[str] = field(default_factory=list)
    failed: bool = False

    def text(self) -> str:
        missing = "; ".join(self.missing).replace("|", "/")
        return f"| {self.version} | {self.way} | {self.tests} | {self.recipes} | {missing} |"


class Environment:
    """An environment with one release of torch and what the tests need, and a log of all that ran
    in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = str(folder / "bin" / "python")
        self.log = folder.parent / f"{folder.name}.log"
        self.env = {
            **os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'agent'}", "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "",  # each process would compile all of torch
            "PARDBG_NATIVE": str(folder.parent / f"{folder.name}.native"),
        }  # fmt: skip

    def install(self, version: str, index: str | None) -> bool:
        if Path(self.python).exists():
            return True
        venv.create(self.folder, with_pip=True)
        pip = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        torch = [f"torch=={version}" if version.count(".") > 1 else f"torch=={version}.*"]
        extra = ["--extra-index-url", index] if index else []
        pinned = self.folder / "constraints.txt"
        lines = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
        pinned.write_text("".join(line for line in lines if not line.startswith("torch")))
        packages = [_requirement(name) for name in ("pardbg", "pardbg-agent")]
        wanted = [each for part in packages for each in part]
        return self.run([*pip, "--no-cache-dir", *extra, *torch]) and self.run(
            [*pip, "-c", str(pinned), *wanted]
        )

    def run(self, argv: Sequence[str], timeout_s: float = 3600, **env: str) -> bool:
        """Run a command at low priority; its output goes to the log."""
        with self.log.open("a") as log:
            log.write(f"\n$ {' '.join(argv)}\n")
            log.flush()
            try:
                code = subprocess.run(
                    ["nice", "-n", "10", *argv], env={**self.env, **env}, cwd=ROOT, stdout=log,
                    stderr=log, timeout=timeout_s, check=False,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                log.write(f"more than {timeout_s:g} s\n")
                return False
        return code == 0


def _requirement(distribution: str) -> list[str]:
    """Return what a distribution of this tree needs, tests included, without the other one."""
    path = ROOT / ("agent" if distribution == "pardbg-agent" else ".") / "pyproject.toml"
    text = path.read_text("utf-8")
    blocks = re.findall(r"^(?:dependencies|dev) = \[$(.*?)^\]", text, re.M | re.S)
    found = [each for block in blocks for each in re.findall(r'^ +"([^"]+)"', block, re.M)]
    leave_out = ("pardbg", "ruff", "mypy", "typos", "import-linter", "pyarrow", "duckdb")
    return [each for each in found if not each.startswith(leave_out)]


def look_at(version: str, folder: Path, given: argparse.Namespace) -> list[Row]:
    """Return the rows of one release."""
    here = Environment(folder / f"torch-{version}")
    if not here.install(version, given.index):
        last = here.log.read_text().strip().splitlines()[-1]
        row = Row(version, "–", missing=[f"not installed: {last[:120]}"], failed=True)
        print(row.text(), flush=True)
        return [row]
    built = "C++" in given.way and here.run([here.python, "-m", "pardbg_agent.native"])
    why_not = here.log.read_text().strip().splitlines()[-1]
    lacks = here.folder / "lacks.json"
    argv = [here.python, "-m", "pardbg_agent.hooks"]
    here.run(["sh", "-c", f"{shlex.join(argv)} > {shlex.quote(str(lacks))}"], PARDBG_NATIVE="off")
    rows = []
    for way in given.way:
        row, hooks = Row(version, way), WAYS[way]
        if way == "C++" and not built:
            row.missing, row.failed = [why_not[:200]], True
        else:
            row.missing = json.loads(lacks.read_text()) if lacks.exists() else ["hooks: none"]
            recipes(here, row, hooks, QUICK if given.quick else ())
            tests(here, row, hooks, TESTS[:1] if given.quick else TESTS)
        rows.append(row)
        print(row.text(), flush=True)
    return rows


def recipes(here: Environment, row: Row, hooks: str, names: Sequence[str]) -> None:
    """Run recipes (none named: all) as one recorded job, and those that fail without pardbg."""
    results = here.folder / f"recipes-{hooks}.json"
    session = results.with_suffix(".mcap")
    for each in (results, session):
        each.unlink(missing_ok=True)
    program = [here.python, "-m", "tests.torches.recipes"]
    argv = [here.python, "-m", "pardbg.cli", "run", "-o", str(session), "--",
            *program, str(results), *names]  # fmt: skip
    here.run(argv, PARDBG_HOOKS=hooks)
    if not results.exists():
        row.recipes, row.failed = "none", True
        return
    found: dict[str, str] = json.loads(results.read_text())
    row.recipes = f"{sum(not why for why in found.values())}/{len(found)}"
    failed = [name for name, why in found.items() if why and name not in why]
    plain: dict[str, str] = {}
    alone = results.with_suffix(".plain.json")
    if failed and here.run([*program, str(alone), *failed]):
        plain = json.loads(alone.read_text())
    for name, why in found.items():
        if why:
            row.missing.append(
                f"{name}: {'without pardbg, too: ' * bool(plain.get(name))}{why[:90]}"
            )
    row.failed = row.failed or any(not plain.get(name) for name in failed)
    row.missing += hook_failures(session)


def hook_failures(session: Path) -> list[str]:
    """Return the hooks that failed in a recorded run."""
    from pardbg.session.reader import load

    errors = {(where, text.strip().splitlines()[-1]) for process in load(session).procs.values()
              for _, where, text in process.errors}  # fmt: skip
    return [f"hook {where}: {text[:100]}" for where, text in sorted(errors)]


def tests(here: Environment, row: Row, hooks: str, paths: Sequence[str]) -> None:
    """Run the tests of hooks, those of the other way left out."""
    xml = here.folder / f"tests-{hooks}.xml"
    other = next(each for each in WAYS.values() if each != hooks)
    argv = [here.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={xml}",
            "--continue-on-collection-errors", "-k", f"not {other}", *paths]  # fmt: skip
    here.run(argv)
    if not xml.exists():
        row.tests, row.failed = "none", True
        return
    cases = ElementTree.parse(xml).getroot().iter("testcase")
    ends = {(case.get("classname"), str(case.get("name"))): [part.tag for part in case]
            for case in cases}  # fmt: skip
    bad = [name for (_, name), tags in ends.items() if {"error", "failure"} & {*tags}]
    skipped = sum("skipped" in tags for tags in ends.values())
    passed = len(ends) - len(bad) - skipped
    row.tests = f"{passed} passed, {len(bad)} failed, {skipped} skipped"
    row.missing += bad
    row.failed = row.failed or bool(bad)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make torches")
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    parser.add_argument("--index", metavar="URL", help="wheel index for torch")
    parser.add_argument("--way", choices=tuple(WAYS), action="append")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    given.way = given.way or list(WAYS)
    folder = given.keep or Path(tempfile.mkdtemp(prefix="pardbg-torches-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(HEAD, flush=True)
    rows = []
    try:
        for version in given.versions:
            rows += look_at(version, folder.absolute(), given)
            if not given.keep:
                shutil.rmtree(folder / f"torch-{version}", ignore_errors=True)
    finally:
        if not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return int(any(row.failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
