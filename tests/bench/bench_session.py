"""A session of 10 M records: first frame, seek and memory of the real app; and recording's cost.

The app runs in a process of its own, on a headless terminal of 120×40: real source, store,
analysis, engine and screens. A seek is from the cursor's move to the frame on the screen.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from pardbg.analysis.answers.report import report
from pardbg.session.reader import load
from pardbg.ui.engine.pace import GcPauses
from tests.bench.figures import Figure
from tests.bench.long_session import make

RECORDS = 10_000_000
SEEKS = 60
RANKS, WATCHED_S = 8, 8.0


def main() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.mcap"
        made = make(path, RECORDS)
        size = path.stat().st_size
        said = _child(path)
        figures = [
            Figure("open 10 M records: first frame", said["first_s"], "s", 1.0,
                   note="from the process's start, imports and all"),
            Figure("open 10 M records: all read", said["loaded_s"], "s"),
            Figure("open 10 M records: seek, median", median(said["seeks_ms"]), "ms", 100,
                   note=f"{SEEKS} random places, all read"),
            Figure("open 10 M records: seek, p95",
                   sorted(said["seeks_ms"])[int(SEEKS * 0.95)], "ms", 100),
            Figure("open 10 M records: until findings, median", median(said["wholes_ms"]), "ms"),
            Figure("open 10 M records: memory", said["peak_mib"] / 1024, "GiB", 1.5,
                   note="peak resident set of the viewer"),
            Figure("10 M records: read, and the whole report", _report_s(path), "s", 5.0,
                   note="`pardbg report` without Python's own start"),
            Figure("made session: bytes on disk", size / made, "B/record", 12,
                   note="a made run; real ones are in sessions/"),
        ]  # fmt: skip
        return [*figures, *_recorder(Path(folder))]


def _report_s(path: Path) -> float:
    begun_s = time.monotonic()
    with GcPauses().suppressed():
        report(load(path))
    return time.monotonic() - begun_s


def _child(path: Path) -> dict[str, Any]:
    argv = [sys.executable, "-m", "tests.bench.bench_session", str(path), str(time.monotonic())]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


async def _open(path: Path, begun_s: float) -> dict[str, Any]:
    from pardbg.session.navigation.replay import ReplayClock
    from pardbg.session.reader import open_session
    from pardbg.ui.app import PardbgApp

    source = open_session(path)
    app = PardbgApp(source, None, title=path.name, replay=ReplayClock())
    async with app.run_test(size=(120, 40)):
        while app.main.shared.frame is None:
            await asyncio.sleep(0.001)
        first_s = time.monotonic() - begun_s
        while not (frame := app.main.shared.frame).finished or frame.loaded < 1:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        loaded_s = time.monotonic() - begun_s
        rng, seeks, wholes = random.Random(7), [], []
        for _ in range(SEEKS):
            t_ns = rng.randrange(frame.begin_ns, frame.end_ns)
            t0 = time.monotonic()
            app.cursor.seek(t_ns)
            app._wake()
            while app.main.shared.frame.snapshot.t_ns != t_ns:  # type: ignore[union-attr]
                await asyncio.sleep(0.001)
            seeks.append((time.monotonic() - t0) * 1e3)
            while not app.main.shared.frame.whole:  # type: ignore[union-attr]
                await asyncio.sleep(0.001)
            wholes.append((time.monotonic() - t0) * 1e3)
    source.close()
    peak = int(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines()
                    if line.startswith("VmHWM")))  # fmt: skip
    return {"first_s": first_s, "loaded_s": loaded_s, "seeks_ms": seeks, "wholes_ms": wholes,
            "peak_mib": peak / 1024}  # fmt: skip


def _recorder(folder: Path) -> list[Figure]:
    """CPU of everything that records 8 ranks of 200 records/s: launcher, hub and `pardbg run`."""
    figures = []
    for level, budget in (("full", 5.0), ("summary", 5.0)):
        env = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
        job = [sys.executable, "-m", "tests.distributed.fake_ranks", str(RANKS), "1000", "0.018"]
        argv = [sys.executable, "-m", "pardbg.cli", "run", "--level", level,
                "-o", str(folder / f"{level}.mcap"), "--", *job]  # fmt: skip
        run = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            figures.append(_watched(run, level, budget))
        finally:
            run.terminate()
            run.wait(30)
    return figures


def _watched(run: subprocess.Popen[bytes], level: str, budget: float) -> Figure:
    own = psutil.Process(run.pid)
    time.sleep(4)
    recording = [own]
    for child in own.children(recursive=True):
        if any(word.startswith("pardbg.hub") for word in child.cmdline()):
            recording.append(child)
    before, t0 = _cpu_s(recording), time.monotonic()
    time.sleep(WATCHED_S)
    spent, passed = _cpu_s(recording) - before, time.monotonic() - t0
    return Figure(f"recording 8 ranks, level {level}", 100 * spent / passed, "% of a core", budget,
                  note=f"{len(recording)} processes: run, launcher, hub")  # fmt: skip


def _cpu_s(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(t.user + t.system for t in times)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_open(Path(sys.argv[1]), float(sys.argv[2])))))
