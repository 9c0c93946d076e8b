"""1,024 ranks: time and memory of ``pardbg report``, and CPU of a moment that a key moves to.

The session: data parallel over groups of 128, tensor parallel over groups of 8, ``STEPS`` steps of
41 records per rank (8 tp and 2 dp collectives with their completions and waits, phases, memory,
loss), 504 k records. A rank of each dp group comes 30 ms late to every step, so there are findings.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

from pardbg.analysis.answers.snapshot import Viewport, snapshot
from pardbg.session.reader import load
from pardbg.session.writer import RunFacts, SessionWriter
from tests.bench.figures import Figure
from tests.unit.trace_builder import Proc, Trace

RANKS, TP, STEPS, STEP_MS, LATE_MS = 1024, 8, 12, 200.0, 30.0
RUNS = 3


def make(path: Path, num_ranks: int = RANKS, num_steps: int = STEPS) -> int:
    """Write the session; return the number of its records."""
    trace = Trace(num_ranks)
    for first in range(0, num_ranks, TP):
        trace.groups[f"tp{first // TP}"] = tuple(range(first, first + TP))
    for place in range(TP):
        trace.groups[f"dp{place}"] = tuple(range(place, num_ranks, TP))
    for step in range(num_steps):
        for proc in trace.ranks:
            one_step(proc, step)
            proc.flush()
    trace.end(num_steps * STEP_MS)
    writer = SessionWriter(path, RunFacts("r", "thousand", "h", ("train",), "/", "", 0, 10**18))
    for message in sorted(trace.messages, key=lambda m: m.received_ns):
        writer.write(message.key, message.payload, message.received_ns)
    writer.close(0)
    return sum(proc.index for proc in trace.ranks)


def one_step(proc: Proc, step: int) -> None:
    """Eight tp all_reduces of 4 ms each 20 ms, then two of the dp group; times by hand."""
    rank = proc.rank or 0
    late = LATE_MS if rank % 128 == 77 else 0.0
    begin, jitter = step * STEP_MS, (rank * 37 + step * 11) % 100 / 100
    tp, dp = f"tp{rank // TP}", f"dp{rank % TP}"
    ready = begin + late + jitter
    for i in range(8):
        t0, done = ready + 10 + 15 * i, begin + 10 + 15 * i + LATE_MS + 4
        proc.collective(tp, "all_reduce", t0, done, 1 << 20, step=step)
        proc.wait(t0 + 0.1, done, step, p2p=False)
    for i in range(2):
        t0, done = ready + 140 + 3 * i, begin + 145 + LATE_MS + 3 * i
        proc.collective(dp, "all_reduce", t0, done, 8 << 20, step=step)
        proc.wait(begin + 144 + LATE_MS + 2 * i, done, step, p2p=False)
    proc.phase("forward", begin + late, begin + 70, step)
    proc.phase("backward", begin + 70, begin + 180, step)
    proc.phase("optimizer", begin + 180, begin + 190, step)
    for name in ("parameters", "gradients", "optimizer", "activations", "rss"):
        proc.memory(name, begin + 190, 1 << 30)
    proc.metric("loss", begin + 190, 4.0 - step / STEPS, step)
    proc.metric("lr", begin + 190, 1e-3, step)
    proc.step(step, begin, begin + 199)


def main() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "thousand.mcap"
        count = make(path)
        runs = [measured(path) for _ in range(RUNS)]
        keys = moved(path)
    note = f"{count:,} records, median of {RUNS}"
    return [
        Figure("report of 1,024 ranks", median(s for s, _ in runs), "s", 3.0, note=note),
        Figure("report of 1,024 ranks: memory", median(m for _, m in runs), "MiB", 300, note=note),
        Figure("a key's moment of 1,024 ranks", keys, "ms", 50, note="p95 of 40, a 20th of a step"),
    ]


def moved(path: Path) -> float:
    """95th percentile of the CPU ms of what a key that moves time asks of the analysis, with 70
    ranks in sight."""
    store, costs = load(path), []
    begin = min(p.started_ns or 0 for p in store.procs.values())
    near = Viewport(frozenset(range(70)), frozenset())
    t_ns = begin + int((STEPS - 4) * STEP_MS * 1e6)
    made = snapshot(store, t_ns, partial=True)
    for _ in range(40):
        t_ns += int(STEP_MS * 1e6 / 20)
        spent = time.thread_time()
        made = snapshot(store, t_ns, partial=True, viewport=near, before=made)
        costs.append((time.thread_time() - spent) * 1e3)
    return quantiles(costs, n=20)[-1]


def measured(path: Path) -> tuple[float, float]:
    """(CPU seconds, peak MiB) of the command."""
    argv = [sys.executable, "-m", "pardbg.cli", "report", str(path)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, env=dict(os.environ))
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"report ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
