"""Sessions for other tools: export, and the same events as JSON.

The run of the large figures: bench_store's 1F1B with 8 ranks, 1,302 steps, a million records. Its
trace is loaded with ``json.load`` and, where ``HTA_PYTHON`` names an interpreter that has
HolisticTraceAnalysis, with that; each in a process of its own, so that peaks are theirs alone.
Times are CPU seconds: all of it runs on one thread, and machines are shared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pardbg.session.export.tables import sheets, write_csv, write_parquet
from pardbg.session.export.trace import write_trace
from pardbg.session.reader import load
from pardbg.session.writer import RunFacts, SessionWriter
from tests.bench import bench_store
from tests.bench.figures import Figure

STEPS = 1302
FACTS = RunFacts("bench", "1f1b", "host", ("python",), "/", "", 0, 1 << 60)
TIMED = """
import json, resource, sys, time
{setup}
t0 = time.process_time()
{load}
took = time.process_time() - t0
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([took, peak]))
"""
OURS = (
    "from pardbg.session.reader import load; from pardbg.analysis.answers.snapshot import snapshot",
    "snapshot(load(sys.argv[1]), None)",
)
JSON = ("import gzip", "events = json.load(gzip.open(sys.argv[1]))['traceEvents']")
HTA = (
    "from hta.common.trace import Trace",
    "trace = Trace(trace_files=dict(enumerate(sys.argv[1].split(':')))); "
    "trace.parse_traces(use_multiprocessing=False)",
)


def main() -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        session, count = million(folder / "s.mcap")
        return [
            *_exports(session, count, folder),
            *_beside(session, folder / "t.json.gz", folder),
        ]


def million(path: Path) -> tuple[Path, int]:
    """A session of about a million records; their number."""
    bench_store.STEPS = STEPS
    trace = bench_store.long_run()
    writer = SessionWriter(path, FACTS)
    for message in trace.messages:
        writer.write(message.key, message.payload, message.received_ns)
    writer.close(0)
    return path, sum(proc.index for proc in trace.ranks)


def _exports(session: Path, count: int, folder: Path) -> list[Figure]:
    store = load(session)
    figures = []
    t0 = time.process_time()
    write_trace(store, folder / "t.json.gz")
    took = (time.process_time() - t0) * 1e6 / count
    size = (folder / "t.json.gz").stat().st_size >> 20
    figures.append(Figure("export: 1 M records to perfetto", took, "s", 10, note=f"{size} MiB"))
    for name, write in (("parquet", write_parquet), ("csv", write_csv)):
        (folder / name).mkdir()
        t0 = time.process_time()
        write(sheets(store), folder / name)
        took = (time.process_time() - t0) * 1e6 / count
        figures.append(Figure(f"export: 1 M records to {name}", took, "s"))
    return figures


def _beside(session: Path, trace: Path, folder: Path) -> list[Figure]:
    """Load time and peak memory of the same events."""
    figures = _timed("pardbg, with all figures", OURS, sys.executable, str(session))
    figures += _timed("the trace in json.load", JSON, sys.executable, str(trace))
    hta = os.environ.get("HTA_PYTHON")
    if hta:
        figures += _timed("the trace in HTA", HTA, hta, ":".join(_per_rank(trace, folder)))
    return figures


def _timed(name: str, code: tuple[str, str], python: str, argument: str) -> list[Figure]:
    script = TIMED.format(setup=code[0], load=code[1])
    done = subprocess.run(
        [python, "-c", script, argument], capture_output=True, text=True, timeout=500, check=False
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return [Figure(f"load: {name}", float("nan"), "s", note=last[:100])]
    took, peak = json.loads(done.stdout.strip().splitlines()[-1])
    return [
        Figure(f"load: {name}", took, "s"),
        Figure(f"peak: {name}", peak / 2**20, "MiB"),
    ]


def _per_rank(trace: Path, folder: Path) -> list[str]:
    """HTA takes a file per rank, and of a trace what Kineto writes: slices with a category it
    knows."""
    import gzip

    with gzip.open(trace, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    by_rank: dict[int, list[dict[str, object]]] = {}
    for event in events:
        if event["ph"] == "X":
            kept = {**event, "cat": "cpu_op", "args": {"External id": 0}}
            by_rank.setdefault(event["pid"], []).append(kept)
    paths = []
    for rank, found in by_rank.items():
        path = folder / f"rank{rank}.json"
        facts = {"rank": rank, "world_size": len(by_rank)}
        path.write_text(json.dumps({"distributedInfo": facts, "traceEvents": found}))
        paths.append(str(path))
    return paths
