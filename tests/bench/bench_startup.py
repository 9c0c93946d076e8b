"""What `pardbg run` adds to a short job, interleaved with the bare job: until it runs, and its end.

Wall time and CPU time of every process together; on a busy machine the latter says more.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.figures import Figure
from tests.distributed.owned import PARDBG
from tests.processes import rank_env

PAIRS = 15
JOB = [sys.executable, "-I", "-c", "import time; print(time.monotonic())"]


def measured(argv: list[str]) -> tuple[float, float, float]:
    """(s until the job runs, s after that, CPU s) of a command whose job prints when it runs."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(argv, capture_output=True, env=rank_env(), check=True, timeout=60)
    ended, after = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = float(done.stdout)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return ran - begun, ended - ran, cpu


def main() -> list[Figure]:
    plain, ours = [], []
    with tempfile.TemporaryDirectory(prefix="pdu-", dir="/tmp") as folder:
        for number in range(PAIRS):
            session = str(Path(folder) / f"{number}.mcap")
            plain.append(measured(JOB))
            ours.append(measured([*PARDBG, "run", "-o", session, "--", *JOB]))
    start, end, cpu = ([a[n] - b[n] for a, b in zip(ours, plain, strict=True)] for n in range(3))
    return [
        _figure("run: start-up added", start, 0.5),
        _figure("run: end added", end, 0.5),
        _figure("run: CPU of a whole run added", cpu, None),
    ]


def _figure(name: str, values: list[float], budget: float | None) -> Figure:
    quarters = statistics.quantiles(values, n=4)
    note = f"{len(values)} pairs, quartiles {quarters[0]:.2f}–{quarters[2]:.2f} s"
    return Figure(name, statistics.median(values), "s", budget, note=note)
