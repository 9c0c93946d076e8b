"""``python -m tests.fuzz [--cases 10000] [--cuts 200] [--seed 0] [--session S.mcap]``

Every mutation of a small session is loaded and everything is computed of it, in child processes
with a limit on memory; a case that crashes, hangs or says more than one line is printed with its
seed. Exit code 1 if there was one.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.cases import Outcome, cut_places, run_case, run_cut
from tests.fuzz.mutate import small_session

PER_CHILD = 250
CASE_S = 20.0
MEMORY_BYTES = 1 << 30
"""Of address space, for all a child does: interpreter, numpy, the largest chunk and its store."""


def child(session: Path, first: int, count: int) -> None:
    """Cases first.. in this process; one JSON line each that is not well, then a summary."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    data, slowest, tally = session.read_bytes(), 0.0, {"loaded": 0, "refused": 0, "bad": 0}
    for seed in range(first, first + count):
        print(json.dumps({"seed": seed}), flush=True)  # the parent knows which one hangs
        begun = time.monotonic()
        outcome = run_case(data, seed)
        slowest = max(slowest, time.monotonic() - begun)
        tally[outcome.kind] += 1
        if outcome.kind == "bad":
            print(json.dumps({"bad": seed, "text": outcome.text}), flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"tally": tally, "slowest_s": slowest, "peak_bytes": peak}), flush=True)


def run_child(session: Path, first: int, count: int) -> tuple[list[str], dict[str, float]]:
    argv = [sys.executable, "-m", "tests.fuzz", "--child", str(first), str(count), "--session",
            str(session)]  # fmt: skip
    bad: list[str] = []
    figures: dict[str, float] = {}
    last: int | None = None
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said: list[str] = []
    timer = time.monotonic()
    for line in process.stdout:
        said.append(line)
        try:
            found = json.loads(line)
        except ValueError:
            continue
        now = time.monotonic()
        if "seed" in found:
            if last is not None and now - timer > CASE_S:
                bad.append(f"seed {last}: {now - timer:.0f} s")
            last, timer = found["seed"], now
        elif "bad" in found:
            bad.append(f"seed {found['bad']}: {found['text']}")
        elif "tally" in found:
            figures = {**found["tally"], "slowest_s": found["slowest_s"],
                       "peak_bytes": found["peak_bytes"]}  # fmt: skip
    if process.wait() != 0 or not figures:
        bad.append(f"seed {last}: exit code {process.returncode}: {''.join(said[-3:])}")
    return bad, figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--session", type=Path)
    parser.add_argument("--child", type=int, nargs=2, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.child:
        child(words.session, *words.child)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        session = words.session or small_session(Path(folder) / "s.mcap")
        bad = _cuts(session, words.cuts)
        return _mutations(session, words.seed, words.cases, bad)


def _cuts(session: Path, count: int) -> list[str]:
    data, bad = session.read_bytes(), []
    for place in cut_places(data, count):
        outcome: Outcome = run_cut(data, place)
        if outcome.kind == "bad":
            bad.append(f"cut at {place}: {outcome.text}")
    print(f"{count} cuts of {len(data):,} bytes: {len(bad)} bad")
    return bad


def _mutations(session: Path, seed: int, cases: int, bad: list[str]) -> int:
    totals = {"loaded": 0.0, "refused": 0.0, "bad": 0.0}
    slowest = peak = 0.0
    begun = time.monotonic()
    for first in range(seed, seed + cases, PER_CHILD):
        count = min(PER_CHILD, seed + cases - first)
        found, figures = run_child(session, first, count)
        bad += found
        for key in totals:
            totals[key] += figures.get(key, 0)
        slowest = max(slowest, figures.get("slowest_s", 0))
        peak = max(peak, figures.get("peak_bytes", 0))
    print(
        f"{cases:,} mutations in {time.monotonic() - begun:.0f} s: {totals['loaded']:.0f} loaded "
        f"(some in part), {totals['refused']:.0f} refused in one line, {len(bad)} bad; slowest "
        f"{slowest:.2f} s, peak {peak / 2**20:.0f} MiB"
    )
    for line in bad[:20]:
        print(f"  {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
