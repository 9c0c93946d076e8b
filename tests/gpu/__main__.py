"""``python -m tests.gpu [--device cuda|sim] [ROW…]``: the table; exit code 1 if a row fails.

Without a CUDA device one line and exit code 0, unless a device is named. ``GPU_SECONDS`` (60) is
the length of the row about the clock, ``GPU_PAIRS`` (5) the number of pairs of the one about cost.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence

from pardbg.lab.sim import extension
from tests import hook_ways
from tests.conftest import ROOT
from tests.gpu.rows import ROWS, num_devices
from tests.gpu.table import Outcome, lines, tried


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--device", choices=("auto", "cuda", "sim"), default="auto")
    parser.add_argument("rows", nargs="*", metavar="ROW")
    given = parser.parse_args(arguments)
    device = "cuda" if given.device == "auto" else given.device
    if given.device == "auto" and not num_devices("cuda"):
        print("no CUDA device here: `make gpu DEVICE=sim` tries the rows on simulated ones")
        return 0
    if unknown := set(given.rows) - {row.name for row in ROWS}:
        parser.error(f"no row {', '.join(sorted(unknown))}: {', '.join(r.name for r in ROWS)}")
    if device == "sim":
        os.environ.setdefault("PARDBG_SIM", str(ROOT / ".native"))
        extension.built()  # half a minute once: in no row's time
    os.environ["PARDBG_NATIVE"] = hook_ways.NATIVE
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)  # where it is low no stream of ours waits
    outcomes: list[Outcome] = []
    for row in ROWS:
        if not given.rows or row.name in given.rows:
            outcomes.append(tried(row, device))
            last = outcomes[-1]
            print(f"{last.verdict:<4} {row.name}: {last.text}", file=sys.stderr, flush=True)
    print("\n".join([_machine(device), *lines(outcomes, device)]))
    return int(any(one.verdict == "FAIL" for one in outcomes))


def _machine(device: str) -> str:
    version = importlib.metadata.version("torch")
    hooks = "dispatcher" if hook_ways.WHY_NO_NATIVE else os.environ.get("PARDBG_HOOKS") or "native"
    return (
        f"{platform.node()}, Python {platform.python_version()}, torch {version}, "
        f"{num_devices(device)} {device} device(s), {hooks} hooks"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
