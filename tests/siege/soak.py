"""A fast job for long, with a viewer: memory and open files of all of ours stay flat."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.distributed.owned import PARDBG, children, handle_of
from tests.distributed.runs import fake_job
from tests.processes import end_tree, rank_env

GROWTH = 1 << 20
"""Bytes a minute: more is growth, once what is kept has filled up (FILL_S)."""
FILL_S = 900.0
LIMITS = {"hub": 160 << 20, "viewer": 240 << 20, "launcher": 80 << 20, "owner": 80 << 20,
          "rank": 80 << 20}  # fmt: skip
"""Before: a hub keeps 64 MiB of history, a viewer 64 Ki records per rank and kind."""
EVERY_S = 5.0
MORE_FILES = 4


def _sizes(processes: dict[str, psutil.Process]) -> dict[str, int]:
    return {name: process.memory_info().rss for name, process in processes.items()}


def run(seconds: int) -> tuple[int, list[str], float]:
    """(seconds, what grew, 0)"""
    with tempfile.TemporaryDirectory(prefix="pdw-", dir="/tmp") as folder:
        session = Path(folder) / "s.mcap"
        job = fake_job(2, 10_000_000, 0.003)
        argv = [
            *PARDBG,
            "run",
            "--max-size",
            "1MB",
            "--rotate",
            "2",
            "-o",
            str(session),
            "--",
            *job,
        ]
        owner = subprocess.Popen(argv, env=rank_env(), stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
        viewer = None
        try:
            handle = handle_of(session)
            words = [sys.executable, "-m", "tests.siege.watcher", str(handle.run_dir)]
            viewer = subprocess.Popen(words, env=rank_env())
            found = children(handle)
            watched = {
                "hub": found["hub"], "launcher": found["launcher"],
                "rank": max(found["job"].children() or [found["job"]], key=lambda p: p.pid),
                "owner": psutil.Process(owner.pid), "viewer": psutil.Process(viewer.pid),
            }  # fmt: skip
            return seconds, _grown(watched, seconds), 0.0
        finally:
            if viewer is not None:
                end_tree(viewer.pid)
            os.kill(owner.pid, signal.SIGTERM)
            try:
                owner.wait(30)
            except subprocess.TimeoutExpired:
                end_tree(owner.pid)


def _grown(watched: dict[str, psutil.Process], seconds: int) -> list[str]:
    rows: list[tuple[float, dict[str, int], dict[str, int]]] = []
    begun = time.monotonic()
    while (at := time.monotonic() - begun) < seconds:
        rows.append((at, _sizes(watched), {name: p.num_fds() for name, p in watched.items()}))
        time.sleep(min(EVERY_S, seconds / 12))
    early, late = rows[len(rows) // 2], rows[-1]
    minutes = (late[0] - early[0]) / 60
    bad = []
    for name in watched:
        rate = (late[1][name] - early[1][name]) / minutes
        line = f"{name}: {late[1][name] / 2**20:.0f} MiB, {rate / 2**20:+.2f} MiB a minute"
        line += f", {late[2][name]} open files"
        print(f"soak: {line}", flush=True)
        if late[2][name] > early[2][name] + MORE_FILES:
            bad.append(f"{name}: {early[2][name]} open files, then {late[2][name]}")
        full = early[0] >= FILL_S
        if (full and rate > GROWTH) or late[1][name] > LIMITS[name]:
            bad.append(line)
    return bad
