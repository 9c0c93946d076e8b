"""What-if held to the truth: the seven schedules run with paced compute, and each one's step time
beside what the model said of it from another one's run.

Stages are equal here and compute sleeps, long enough that what is left for the CPU hardly counts:
four ranks on few cores must not slow each other.
The figure is |predicted / measured - 1|; both are medians over the steps after the warm-up.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pardbg.analysis.base.asof import View
from pardbg.analysis.whatif.answer import WhatIf, whatif
from pardbg.lab.recipes.catalogue import command
from pardbg.session.reader import load
from tests.bench.figures import Figure

RECIPES = {
    "1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B", "looped-bfs": "LoopedBFS",
    "zb": "InterleavedZeroBubble", "zbv": "ZBVZeroBubble", "dualpipev": "DualPipeV",
}  # fmt: skip
SOURCES = ("1f1b", "interleaved", "zb")
"""A schedule of one stage per rank, one of two, and one that shows I and W apart."""
STEPS = 6
PACE_MS = 40
BUDGET = 5.0


def main() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        answers = {name: _answer(_record(name, Path(folder))) for name in RECIPES}
    figures = []
    for source in SOURCES:
        for name, schedule in RECIPES.items():
            if name != source:
                figures.append(_figure(source, answers[source], schedule, answers[name]))
    own = max(abs(answer.error) for answer in answers.values()) * 100
    figures.append(Figure("what-if: own error, worst of seven", own, "%", BUDGET))
    return figures


def _record(name: str, folder: Path) -> Path:
    """A session of the recipe."""
    path = folder / f"{name}.mcap"
    job = [*command(name, steps=STEPS), "--pace", str(PACE_MS)]
    argv = [sys.executable, "-m", "pardbg.cli", "run", "-o", str(path), "--", *job]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(argv, check=True, timeout=120, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=env)  # fmt: skip
    return path


def _answer(path: Path) -> WhatIf:
    answer = whatif(View(load(path), None))
    assert isinstance(answer, WhatIf), answer
    return answer


def _figure(source: str, by: WhatIf, schedule: str, ran: WhatIf) -> Figure:
    said = next(o for o in by.options if o.schedule == schedule and not o.equal)
    error = said.step_ns / ran.step_ns - 1
    note = f"said {said.step_ns / 1e6:.0f} ms, took {ran.step_ns / 1e6:.0f} ms ({error:+.1%})"
    return Figure(f"what-if: {schedule} from {source}", abs(error) * 100, "%", BUDGET, note=note)
