"""A fast job for long, with a viewer: memory and open files of all of ours stay flat."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.distributed.owned import children, handle_of
from tests.distributed.runs import fake_job
from tests.harness import Found, pardbg_run
from tests.processes import end_tree, rank_env, wait_until

GROWTH = 1 << 20
"""Bytes a minute: more is growth, once what is kept has filled up (FILL_S)."""
FILL_S = 900.0
LIMITS = {"hub": 120 << 20, "viewer": 240 << 20, "launcher": 80 << 20, "owner": 80 << 20,
          "rank": 80 << 20}  # fmt: skip
"""A hub keeps 64 MiB of history as packed as it is recorded, a viewer 64 Ki records per rank and
kind."""
RANKS = 2
EVERY_S = 5.0
MORE_FILES = 4


TOLD_S = 300.0


@dataclass(frozen=True, slots=True)
class Row:
    at: float
    steps: int
    sizes: dict[str, int]
    """Resident bytes."""
    files: dict[str, int]
    cpu: dict[str, float]
    """Seconds of processor time so far."""


def run(_: int, seconds: int) -> Found:
    """Watch a job for so long: (seconds, what grew, 0)"""
    with tempfile.TemporaryDirectory(prefix="pdw-", dir="/tmp") as name:
        folder = Path(name)
        session, printed = folder / "s.mcap", folder / "out"
        job = fake_job(RANKS, 10_000_000, 0.003)
        owner = pardbg_run(job, folder, "--max-size", "1MB", "--rotate", "2")
        viewer, ranks = None, []
        try:
            handle = handle_of(session)
            words = [sys.executable, "-m", "tests.siege.watcher", str(handle.run_dir)]
            viewer = subprocess.Popen(words, env=rank_env())
            found = children(handle)
            wait_until(lambda: len(found["job"].children()) >= RANKS, 60, "the ranks")
            ranks = found["job"].children()
            watched = {
                "hub": found["hub"], "launcher": found["launcher"],
                "rank": ranks[0],
                "owner": psutil.Process(owner.pid), "viewer": psutil.Process(viewer.pid),
            }  # fmt: skip
            return seconds, _grown(watched, printed, seconds), 0.0
        finally:
            if viewer is not None:
                end_tree(viewer.pid)
            for rank in ranks:  # no plain job's end ends them, either
                rank.kill()
            os.kill(owner.pid, signal.SIGTERM)
            try:
                owner.wait(30)
            except subprocess.TimeoutExpired:
                end_tree(owner.pid)


def _row(watched: dict[str, psutil.Process], printed: Path, begun: float) -> Row:
    with printed.open("rb") as file:
        file.seek(max(0, printed.stat().st_size - 200))
        said = re.findall(rb"step (\d+) value \d+\n", file.read())
    cpu = {name: sum(p.cpu_times()[:2]) for name, p in watched.items()}
    return Row(time.monotonic() - begun, int(said[-1]) if said else 0,
               {name: p.memory_info().rss for name, p in watched.items()},
               {name: p.num_fds() for name, p in watched.items()}, cpu)  # fmt: skip


def _told(last: Row, row: Row) -> str:
    """Steps a second, MiB and share of a core of each since the last row."""
    span = row.at - last.at
    parts = [
        f"{name} {row.sizes[name] / 2**20:.1f} MiB {(row.cpu[name] - last.cpu[name]) / span:.1%}"
        for name in row.sizes
    ]
    return f"soak: {row.at / 60:.0f} min, step {row.steps:,}, " + ", ".join(
        [f"{(row.steps - last.steps) / span:.0f}/s", *parts]
    )


def _grown(watched: dict[str, psutil.Process], printed: Path, seconds: int) -> list[str]:
    begun = time.monotonic()
    rows = [_row(watched, printed, begun)]
    told = rows[0]
    while rows[-1].at < seconds:
        time.sleep(min(EVERY_S, seconds / 12))
        rows.append(_row(watched, printed, begun))
        if rows[-1].at - told.at >= TOLD_S:
            print(_told(told, rows[-1]), flush=True)
            told = rows[-1]
    early, late = rows[len(rows) // 2], rows[-1]
    print(_told(early, late), flush=True)
    minutes = (late.at - early.at) / 60
    bad = []
    for name in watched:
        rate = (late.sizes[name] - early.sizes[name]) / minutes
        line = f"{name}: {late.sizes[name] / 2**20:.0f} MiB, {rate / 2**20:+.2f} MiB a minute"
        line += f", {late.files[name]} open files"
        print(f"soak: {line}", flush=True)
        if late.files[name] > early.files[name] + MORE_FILES:
            bad.append(f"{name}: {early.files[name]} open files, then {late.files[name]}")
        full = early.at >= FILL_S
        if (full and rate > GROWTH) or late.sizes[name] > LIMITS[name]:
            bad.append(line)
    return bad
