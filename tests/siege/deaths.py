"""Kills of pardbg's processes, up to four of five at once, from the first 10 ms of `pardbg run` on.

The job's output and exit code are those of a run without pardbg, whoever is killed. If that is
`pardbg run` itself, before there is a job, then there is none, and nothing of the run is left.
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path

import psutil

from pardbg.hub.run import config as files
from pardbg.hub.run.run_files import read_end
from tests.distributed.owned import starting
from tests.harness import Found, Tried, campaign, pardbg_run
from tests.processes import comes_true, end_tree, wait_until

FROM_S, UNTIL_S = 0.01, 1.6
"""When the kill comes: a run takes 0.4 s to start its job on idle cores, and that 0.4 s. Of every
three runs one is killed then, two that long after all victims are there."""
LIMIT_S = 60.0
OURS = ("run", "keeper", "guardian", "launcher", "hub")
ABOVE = {*OURS} - {"hub"}
"""Without any of these nobody is left who could read the job's output."""
VICTIMS = [
    group for size in range(1, 5) for group in combinations(OURS, size) if not {*group} >= ABOVE
]
LINES = 40
CODE = 9
WHOLE = "".join(f"line {number}\n" for number in range(LINES)).encode()
PROGRAM = f"""#!{sys.executable} -uSE
import sys, time
for number in range({LINES}):
    print("line", number)
    time.sleep(0.01)
sys.exit({CODE})
"""


class Case:
    """One run, whom of it is killed, and what is wrong with what it left."""

    def __init__(
        self, name: str, victims: tuple[str, ...], at_s: float, late: bool, folder: Path
    ) -> None:
        self.name = name
        """Of the program, and so of the run."""
        self._victims, self._folder = victims, folder
        self._at_s, self._late = at_s, late
        self.killed: set[str] = set()
        self.bad: list[str] = []

    def run(self) -> None:
        program, out = self._folder / self.name, self._folder / "out"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        run = pardbg_run([str(program)], self._folder)
        if self._late:
            wait_until(lambda: self._all_there(run), LIMIT_S, "the victims")
        time.sleep(self._at_s)
        self._kill(run)
        try:
            code = run.wait(LIMIT_S)
            self._wait_end()
            self._judge(code, out.read_bytes())
        except subprocess.TimeoutExpired:
            self.bad.append("hangs")
        finally:
            end_tree(run.pid)
            for process in _ours(self.name):
                process.kill()
            run.wait()

    def _all_there(self, run: subprocess.Popen[bytes]) -> bool:
        return {*self._victims} <= {*starting(psutil.Process(run.pid))} or run.poll() is not None

    def _kill(self, run: subprocess.Popen[bytes]) -> None:
        there = starting(psutil.Process(run.pid))
        for name in self._victims:
            if name in there:
                self.killed.add(name)
                try:
                    there[name].kill()
                except psutil.NoSuchProcess:
                    self.killed.discard(name)

    def _wait_end(self) -> None:
        if not comes_true(lambda: not _ours(self.name), LIMIT_S):
            left = _ours(self.name)
            self.bad.append(f"{len(left)} processes are left")

    def _judge(self, code: int, out: bytes) -> None:
        if "run" in self.killed and code == -signal.SIGKILL and not out:
            self._judge_nothing_left()
            return
        if out != WHOLE:
            self.bad.append(f"{out.count(b'line')} of {LINES} lines")
        if "run" in self.killed and code == -signal.SIGKILL:
            ends = [read_end(path) for path in self._dirs()]
            code = ends[0].code if ends and ends[0] is not None else -1
        if code != CODE:
            err = (self._folder / "err").read_text(errors="replace").strip()
            self.bad.append(f"exit code {code} {err[-200:]}")

    def _judge_nothing_left(self) -> None:
        if left := self._dirs():
            self.bad.append(f"left behind: {', '.join(map(str, left))}")
        if (self._folder / "s.mcap").exists():
            self.bad.append("a recording of no job is left")

    def _dirs(self) -> list[Path]:
        roots = [root for root in (*files.roots(), files.shm_root()) if root.is_dir()]
        return [path for root in roots for path in root.glob(f"{self.name}-*")]


def _ours(name: str) -> list[psutil.Process]:
    """Processes whose command line names the run."""
    found = psutil.process_iter(["cmdline", "status"])
    return [p for p in found if any(name in word for word in p.info["cmdline"] or [])
            and p.info["status"] != psutil.STATUS_ZOMBIE]  # fmt: skip


def run(seed: int, cases: int, seconds: float = math.inf) -> Found:
    """Try deaths; none is begun after so many ``seconds``."""

    def one(number: int, rng: random.Random, folder: Path) -> Tried:
        at_s, group = rng.uniform(FROM_S, UNTIL_S), list(VICTIMS[number % len(VICTIMS)])
        rng.shuffle(group)
        late = number % 3 > 0
        at_s = at_s / 4 if late else at_s
        case = Case(f"d{number}x{os.getpid()}", tuple(group), at_s, late, folder)
        case.run()
        killed = "+".join(sorted(case.killed)) or "nobody yet or any more"
        what = f"{'+'.join(group)} {'late ' * late}at {at_s:.3f} s"
        return Tried(case.bad, what, [killed])

    return campaign("deaths", one, range(seed, seed + cases), seconds)
