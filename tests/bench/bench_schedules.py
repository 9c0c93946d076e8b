"""Schedules as tables: how soon the editor's figures follow a key, and how far predictions are off.

Tables run with paced compute on four real ranks; each step time is beside what a run of 1F1B said
of the table before: |predicted / took - 1|, medians over the steps after the warm-up.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import quantiles
from time import perf_counter, process_time

from pardbg.analysis.base.asof import View
from pardbg.analysis.whatif.answer import WhatIf, whatif
from pardbg.analysis.whatif.plans import plan
from pardbg.errors import UserError
from pardbg.lab.recipes.catalogue import command
from pardbg.lab.recipes.catalogue.tables import zb_h1
from pardbg.lab.schedules.compare import Durations, measured, predict
from pardbg.lab.schedules.editor import Editor
from pardbg.lab.schedules.page import TableLook, table_page
from pardbg.lab.schedules.schedule_table import dump, from_plan
from pardbg.lab.schedules.search import Problem, search
from pardbg.lab.schedules.sheet import sheet
from pardbg.session.reader import load
from tests.bench.figures import Figure

RANKS, MICROBATCHES, STEPS, PACE_MS = 4, 8, 6, 40
KEY_BUDGET_MS, STEP_BUDGET = 50.0, 5.0
COSTS = Durations(10e6, 20e6, 10e6, 10e6)


def main() -> list[Figure]:
    figures = [_keys(name) for name in ("1F1B", "GPipe")]
    with tempfile.TemporaryDirectory() as folder:
        base = load(_record(Path(folder), "1f1b"))
        costs = measured(View(base, None))
        assert not isinstance(costs, str), costs
        tables = {
            "GPipe": from_plan(plan("GPipe", RANKS, 1, MICROBATCHES)),
            "ZB-H1": from_plan(dict(enumerate(zb_h1(RANKS, MICROBATCHES).rows))),
            "ZBV": from_plan(plan("ZBVZeroBubble", RANKS, 2, MICROBATCHES)),
        }
        found = search(Problem(RANKS, MICROBATCHES, "one", costs, RANKS))
        if found is not None:
            tables["search"] = found.table
        for name, table in tables.items():
            said = predict(name, table, costs).step_ns or 0.0
            path = Path(folder) / f"{name}.csv"
            path.write_text(dump(table))
            took = whatif(View(load(_record(Path(folder), "csv", "--file", str(path))), None), ())
            assert isinstance(took, WhatIf), took
            error = said / took.step_ns - 1
            note = f"said {said / 1e6:.0f} ms, took {took.step_ns / 1e6:.0f} ms ({error:+.1%})"
            figures.append(Figure(f"schedule: {name} from a run of 1F1B", abs(error) * 100, "%",
                                  STEP_BUDGET, note=note))  # fmt: skip
    return figures


def _keys(name: str) -> Figure:
    """An action moved on, everything said of the table anew and drawn, at pp 8 and mb 32."""
    editor = Editor(from_plan(plan(name, 8, 1, 32)))
    say = partial(sheet, taken=COSTS)
    took, cpu = [], []
    for number in range(40):
        editor.go(number % 8, 3 + 5 * number % 50)
        begin, begin_cpu = perf_counter(), process_time()
        try:
            editor.apply(editor.draft.shifted(1 if number % 2 else -1))
        except UserError:
            continue
        look = TableLook("x", "y", rank=number % 8, tick=5, now=1 << 30)
        table_page(say(editor.draft.table), look, 200, 60)
        took.append((perf_counter() - begin) * 1e3)
        cpu.append((process_time() - begin_cpu) * 1e3)
    p95, busy = quantiles(took, n=20)[-1], quantiles(cpu, n=20)[-1]
    note = f"p95 of {len(took)}, 512 actions; CPU {busy:.0f} ms"
    return Figure(f"schedule edit: key to picture, {name}", p95, "ms", KEY_BUDGET_MS, note=note)


def _record(folder: Path, name: str, *own: str) -> Path:
    """A session of a recipe."""
    path = folder / f"{name}-{len(list(folder.iterdir()))}.mcap"
    job = [*command(name, steps=STEPS, own=own), "--pace", str(PACE_MS)]
    argv = [sys.executable, "-m", "pardbg.cli", "run", "-o", str(path), "--", *job]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(argv, check=True, timeout=120, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=env)  # fmt: skip
    return path
