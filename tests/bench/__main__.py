"""``python -m tests.bench [WORD…]``: run the benches (those whose name has a WORD), print a table.

See tests/bench/figures.py for the convention.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

from tests.bench.figures import HEADER

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LIMIT_S = 600
"""A bench that takes longer has hung."""


def run_one(name: str) -> None:
    """Run one bench in this process and print its figures as they are."""
    for figure in importlib.import_module(f"tests.bench.{name}").main():
        print(figure.line(), flush=True)


def main(words: list[str]) -> int:
    names = sorted(path.stem for path in HERE.glob("bench_*.py"))
    chosen = [name for name in names if not words or any(word in name for word in words)]
    print(HEADER, flush=True)
    crashed = []
    for name in chosen:
        # A process of its own: one bench's torch threads and patches must not slow the next one.
        argv = [sys.executable, "-m", "tests.bench", "--one", name]
        try:
            code = subprocess.run(argv, cwd=ROOT, timeout=LIMIT_S, check=False).returncode
        except subprocess.TimeoutExpired:
            code = -1
        if code != 0:
            crashed.append(name)
    if crashed:
        print(f"benches that crashed or hung: {', '.join(crashed)}", file=sys.stderr)
    return 1 if crashed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        run_one(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1:]))
