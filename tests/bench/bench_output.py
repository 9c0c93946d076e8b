"""What a job waits for its output: `pardbg run` beside a plain pipe, interleaved.

The job writes 300 MB through ``tr`` and says how long that took it; a reader takes what comes.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from pathlib import Path

from tests.bench.figures import Figure
from tests.distributed.owned import PARDBG
from tests.processes import rank_env

PAIRS = 9
MEGABYTES = 300
JOB = (
    "begun=$(date +%s%N); head -c {size}M /dev/zero | tr '\\0' '{chars}'; "
    "echo $(( $(date +%s%N) - begun )) > {told}"
)


def took_s(argv: list[str], job: str, told: Path) -> float:
    """Seconds that the job took to write, with ``cat`` at the other end."""
    writer = subprocess.Popen(
        [*argv, "bash", "-c", job], env=rank_env(), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    subprocess.run(["cat"], stdin=writer.stdout, stdout=subprocess.DEVNULL, check=True)
    assert writer.stdout is not None
    writer.stdout.close()
    writer.wait(120)
    return int(told.read_text()) / 1e9


def main() -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory(prefix="pdo-", dir="/tmp") as folder:
        told = Path(folder, "told")
        for name, chars in (("one line", "x"), ("short lines", "\\n")):
            job = JOB.format(size=MEGABYTES, chars=chars, told=told)
            ratios, plain = [], []
            for number in range(PAIRS):
                ours = [*PARDBG, "run", "-o", f"{folder}/{name}{number}.mcap", "--"]
                plain.append(took_s([], job, told))
                ratios.append(took_s(ours, job, told) / plain[-1])
            figures.append(_figure(name, ratios, statistics.median(plain)))
    return figures


def _figure(name: str, ratios: list[float], plain_s: float) -> Figure:
    quarters = statistics.quantiles(ratios, n=4)
    note = (
        f"{len(ratios)} pairs, quartiles {quarters[0]:.2f}–{quarters[2]:.2f}, plain {plain_s:.2f} s"
    )
    what = f"run: {MEGABYTES} MB of output ({name}), times a pipe"
    return Figure(what, statistics.median(ratios), "x", 2.0, note=note)
