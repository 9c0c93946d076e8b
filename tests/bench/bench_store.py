"""Store and analysis: records in, a live snapshot at the end of a long 1F1B run, a timeline frame.

The run: 1F1B with 8 ranks and 8 microbatches, labelled p2p with waits, phases, memory and loss,
about 130 records per rank and step, in batches as the agents send them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from pardbg.analysis.answers.report import report
from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.answers.timeline import lanes
from pardbg.analysis.pipeline.play import simulate
from pardbg.render.reports.text import text
from pardbg.store import Store
from tests.bench.figures import Figure
from tests.unit.trace_builder import MS, Proc, Trace, one_f_one_b

RANKS, MICROBATCHES, STEPS = 8, 8, 600
STEP_MS = 50.0


def main() -> list[Figure]:
    trace = long_run()
    return [_load(trace), *_snapshots(trace), *_report(trace), *_timeline()]


def long_run() -> Trace:
    """``STEPS`` steps of the plan, ms slots of 1, with sends, receives and waits around it."""
    trace = Trace(RANKS)
    plan = one_f_one_b(RANKS, MICROBATCHES)
    trace.plan("Schedule1F1B", plan, MICROBATCHES)
    simulated = simulate(plan, RANKS, lambda _rank, _action: 1.0)
    assert simulated is not None
    for step in range(STEPS):
        for proc in trace.ranks:
            one_step(proc, step, simulated.rows[proc.rank or 0])
            proc.flush()
    return trace


def one_step(proc: Proc, step: int, row: tuple[tuple[str, float, float], ...]) -> None:
    rank, begin = proc.rank or 0, STEP_MS * step
    for action, t0, t1 in row:
        t0, t1 = begin + t0 + 0.1, begin + t1
        label = "F" if "F" in action else "B"
        mb = int(action.split(label)[1])
        down = 1 if label == "F" else -1
        if 0 <= rank - down < RANKS:
            proc.p2p("world", rank - down, False, t0 - 0.1, t0, step=step, stage=rank, mb=mb,
                     label=label)  # fmt: skip
            proc.wait(t0 - 0.09, t0, step)
        proc.action(action, t0, t1, step, a=1000)
        if 0 <= rank + down < RANKS:
            proc.p2p("world", rank + down, True, t1, t1 + 0.1, step=step, stage=rank, mb=mb,
                     label=label)  # fmt: skip
    proc.phase("pipeline", begin, begin + 46, step)
    proc.phase("optimizer", begin + 46, begin + 49, step)
    for name in ("parameters", "gradients", "optimizer", "rss"):
        proc.memory(name, begin + 49, 1 << 20)
    proc.metric("loss", begin + 49, 4.0 - step / STEPS, step)
    proc.collective("world", "all_reduce", begin + 46, begin + 47, 1 << 18, step=step)
    proc.step(step, begin, begin + 49.9, hook_ns=MS // 10)


def timed(run: Callable[[], object], times: int) -> float:
    """Median ms of CPU time of a call: all of it runs on one thread, and machines are shared."""
    taken = []
    for _ in range(times):
        t0 = time.thread_time()
        run()
        taken.append((time.thread_time() - t0) * 1e3)
    return median(taken)


def _load(trace: Trace) -> Figure:
    def load() -> None:
        store = Store()
        store.apply_all(trace.messages)
        store.settle()

    ms = timed(load, 5)
    count = sum(proc.index for proc in trace.ranks)
    note = f"{count:,} records in {len(trace.messages):,} messages"
    return Figure("store: decode and apply", count / ms * 1e3, "records/s", None, True, note)


def _snapshots(trace: Trace) -> list[Figure]:
    """A viewer that has followed the run: a frame after each new batch of every rank."""
    store = Store(live=True)
    cut = len(trace.messages) - 40 * RANKS
    store.apply_all(trace.messages[:cut])
    t0 = time.thread_time()
    snapshot(store, None)
    first = (time.thread_time() - t0) * 1e3
    taken = []
    for at in range(cut, len(trace.messages), RANKS):
        store.apply_all(trace.messages[at : at + RANKS])
        taken.append(timed(lambda: snapshot(store, None), 1))
    whole = trace.store()
    begin, end = whole.begin_ns, whole.end_ns
    cursors = iter(range(begin + 30 * MS, end, (end - begin) // 37))
    seek = timed(lambda: snapshot(whole, next(cursors)), 30)
    frames = iter(range(end - 2000 * MS, end, 66 * MS))
    play = timed(lambda: snapshot(whole, next(frames)), 30)
    return [
        Figure("analysis: live snapshot, 8 ranks", median(taken), "ms", 30, note=f"{STEPS} steps"),
        Figure("analysis: first snapshot", first, "ms"),
        Figure("analysis: snapshot after a seek", seek, "ms"),
        Figure("analysis: snapshot while playing", play, "ms", 30),
    ]


def _report(trace: Trace) -> list[Figure]:
    store = trace.store()
    t0 = time.thread_time()
    said = report(store)
    text(said)
    return [Figure("analysis: report", (time.thread_time() - t0) * 1e3, "ms")]


def _timeline() -> list[Figure]:
    """60 rows × 200 columns out of 40 k spans a rank: 20 ranks with three lanes."""
    trace = Trace(20)
    for proc in trace.ranks:
        for i in range(40_000):
            proc.action(f"0{'FB'[i % 2]}{i % 8}", i, i + 0.9, i // 16)
            if i % 2:
                proc.wait(i - 0.1, i)
            if i % 16 == 0:
                proc.step(i // 16, i, i + 15)
        proc.flush()
    store = trace.store()
    t0, t1 = store.begin_ns, store.end_ns
    middle = (t0 + t1) // 2
    return [
        Figure("timeline 60×200, the whole run", timed(lambda: lanes(store, t0, t1, 200), 9), "ms",
               20, note="40 k spans a rank"),
        Figure("timeline 60×200, 100 spans a lane",
               timed(lambda: lanes(store, middle, middle + 100 * MS, 200), 9), "ms", 20),
    ]  # fmt: skip
