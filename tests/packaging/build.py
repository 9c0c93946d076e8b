"""Source distributions and wheels of both distributions, built from a copy of what they contain.

    python -m tests.packaging.build FOLDER

No network: the build backends are those of this environment. A wheel is built from the source
distribution, so a file that is missing there is missing in the wheel, too.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTENTS = {
    "pardbg": ("pyproject.toml", "README.md", "LICENSE", "pardbg"),
    "pardbg_agent": (
        "agent/pyproject.toml", "agent/README.md", "agent/LICENSE", "agent/pardbg.pth",
        "agent/pardbg_agent",
    ),
}  # fmt: skip
"""Paths of each distribution's tree, without what earlier builds left beside them."""


def build(distribution: str, folder: Path) -> None:
    """Build one distribution into ``folder``; raises with the backend's output if it fails."""
    with tempfile.TemporaryDirectory(prefix="pardbg-build-") as scratch:
        for name in CONTENTS[distribution]:
            copy(ROOT / name, Path(scratch) / Path(name).name)
        done = subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), scratch],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{distribution}: {done.stdout[-3000:]}{done.stderr[-3000:]}")


def copy(source: Path, target: Path) -> None:
    """Copy a file or a tree, without compiled files."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    else:
        shutil.copy(source, target)


if __name__ == "__main__":
    for each in CONTENTS:
        build(each, Path(sys.argv[1]).absolute())
    for path in sorted(Path(sys.argv[1]).iterdir()):
        print(path)
