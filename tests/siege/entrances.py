"""The agent enters and leaves jobs of many kinds that run without it, and what brought it dies at
drawn moments: the job computes and ends as without it, and no rank waits long.

``ENTRANCES_PYTHON``: the jobs' Python (with torch), if it is not this one.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from pardbg.analysis.answers.report import report
from pardbg.hub.run.run_files import Launch, read_hub, read_launch
from pardbg.hub.run.runs import list_runs
from pardbg.hub.run.start import RunHandle
from pardbg.session.reader import SessionError, load
from tests.distributed.owned import PARDBG
from tests.harness import Found, Tried, campaign
from tests.processes import comes_true, end_tree, rank_env, run_argv

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "distributed" / "programs" / "kinds_of_training.py"
PYTHON = os.environ.get("ENTRANCES_PYTHON", sys.executable)
KINDS = (
    "plain", "several", "zero", "compiled", "compiled_step", "accumulated", "scheduled", "scaled",
    "closure", "fork", "spawn", "saving", "signalled", "uneven", "thread", "fsdp", "hsdp", "fsdp1",
    "tensors", "piped", "ring",
)  # fmt: skip
SIZES = (2, 2, 2, 3, 4)
ACTS = ("leave", "leave", "leave", "kill attach", "kill hub", "kill launcher", "kill job")
ACTS_EACH = 3
LIMIT_S = 120.0
HELD_S = 10.0
"""No rank is held for longer."""
FORGOTTEN_S = 9.0
"""After this long ranks know that who attached is gone."""
_plain: dict[tuple[str, int], list[str]] = {}
"""Lines of the longest run of each kind."""


class Job:
    """A torchrun that nobody watches."""

    def __init__(self, kind: str, size: int, folder: Path, env: dict[str, str]) -> None:
        self.stop, self.out, self.err = folder / "stop", folder / "out", folder / "err"
        self.kind, self.size = kind, size
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                program(kind, size, self.stop, 10**6), env=rank_env(env), stdout=out, stderr=err,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def lines(self) -> list[list[str]]:
        """(step, loss, when) of each."""
        return rows(self.out.read_text())

    def goes_on(self, steps: int) -> bool:
        upto = len(self.lines()) + steps
        return comes_true(
            lambda: len(self.lines()) >= upto or self.process.poll() is not None, LIMIT_S
        ) and (self.process.poll() is None)

    def ends(self) -> int | None:
        self.stop.touch()
        try:
            return self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            end_tree(self.process.pid)
            return None

    def longest_wait_s(self) -> float:
        times = [float(row[2]) for row in self.lines()]
        return max((b - a for a, b in itertools.pairwise(times)), default=0.0)


def program(kind: str, size: int, stop: Path, steps: int) -> list[str]:
    return [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size),
            str(PROGRAM), kind, str(stop), str(steps)]  # fmt: skip


def rows(text: str) -> list[list[str]]:
    parts = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [row for row in parts if len(row) == 3 and row[0].isdigit()]


def losses_of_plain(kind: str, size: int, steps: int, folder: Path) -> list[str]:
    """The same program, never entered: each loss to the last digit."""
    if len(_plain.get((kind, size), ())) < steps:
        argv = program(kind, size, folder / "never", steps)
        done = run_argv(argv, env=rank_env({"PACE": "0", "PARDBG_NATIVE": "off"}), timeout_s=300)
        _plain[kind, size] = [row[1] for row in rows(done.out)]
    return _plain[kind, size][:steps]


class Case:
    """One job, how often it is entered, and what is wrong with what came of it."""

    def __init__(self, kind: str, size: int, rng: random.Random, folder: Path) -> None:
        self.bad: list[str] = []
        self.done: list[str] = []
        self._rng, self._folder = rng, folder
        env = {"PARDBG_NATIVE": "off"} if rng.random() < 0.5 else {}
        self.job = Job(kind, size, folder, env)
        self._unclean = False
        """A process of the run was killed: it may live on, and the job not be entered again."""

    def run(self) -> None:
        try:
            if not self.job.goes_on(3):
                self.bad.append("did not start: " + self.job.err.read_text()[-300:])
                return
            usual = self.job.longest_wait_s()
            for number in range(ACTS_EACH):
                self._enter(self._folder / f"{number}.mcap", self._rng.choice(ACTS))
                if not self.job.goes_on(5):
                    self.bad.append(f"the job does not go on after {self.done[-1]}")
                    return
            code = self.job.ends()
            self._judge(code, usual)
        finally:
            end_tree(self.job.process.pid)
            self.job.process.wait()

    def _enter(self, session: Path, act: str) -> None:
        begun = time.monotonic()
        wait = "10s" if self.job.kind == "thread" else "60s"
        attach = subprocess.Popen(
            [*PARDBG, "attach", "--agent", "--launcher", str(self.job.process.pid), "--wait", wait,
             "-o", str(session)],
            env=rank_env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        if act != "leave":
            time.sleep(self._rng.random() * 8)
            self._kill(act, session, attach)
        said = attach.communicate(timeout=LIMIT_S)[0]
        name = f"{act} {attach.returncode} {time.monotonic() - begun:.0f}s"
        if attach.returncode > 0:
            name += f" ({said.strip().splitlines()[-2:]})"
        self.done.append(name)
        expected = 2 if self.job.kind == "thread" else 0
        if act == "leave" or (act == "kill attach" and attach.returncode == 0):
            if attach.returncode != expected and not self._unclean:
                self.bad.append(f"{name}: {said[-400:]}")
            if attach.returncode == 0:
                self._leave(session)
        elif act == "kill attach":
            time.sleep(FORGOTTEN_S)
        else:
            self._unclean = True

    def _kill(self, act: str, session: Path, attach: subprocess.Popen[str]) -> None:
        handle = handle_of(session)
        if act == "kill attach":
            attach.kill()
        elif handle is not None:
            launch = read_launch(handle.run_dir) or Launch()
            found = {"hub": read_hub(handle.run_dir), "launcher": launch.launcher,
                     "job": launch.job}[act[5:]]  # fmt: skip
            if found is not None and found.alive:
                os.kill(found.pid, signal.SIGKILL)

    def _leave(self, session: Path) -> None:
        self.job.goes_on(self._rng.randrange(2, 30) if self.job.kind != "uneven" else 3)
        handle = handle_of(session)
        if handle is None:
            self.bad.append("the run is gone")
            return
        argv = [*PARDBG, "ctl", handle.run, "kill"]
        subprocess.run(argv, env=rank_env(), capture_output=True, timeout=60, check=False)
        if not comes_true(lambda: not handle.alive(), LIMIT_S):
            self.bad.append("the run does not end")
        if not self._unclean:
            self._judge_session(session)

    def _judge_session(self, session: Path) -> None:
        try:
            said = report(load(session))
        except SessionError as error:
            self.bad.append(f"session: {error}")
            return
        found = [one.kind for one in said.findings if one.severity != "info"]
        if found:
            self.bad.append(f"{session.name}: found {found}")

    def _judge(self, code: int | None, usual: float) -> None:
        if code != 0:
            self.bad.append("hangs" if code is None else f"exit code {code}")
        spawns = self.job.kind == "spawn"  # each epoch's workers import torch, which takes as long
        if (waited := self.job.longest_wait_s()) > HELD_S + usual and not spawns:
            self.bad.append(f"a step of {waited:.1f} s")
        if "Traceback" in (err := self.job.err.read_text()) or re.search("(?i)pardbg", err):
            self.bad.append(f"said: {err[-500:]}")
        mine = [row[1] for row in self.job.lines()]
        plain = losses_of_plain(self.job.kind, self.job.size, len(mine), self._folder)
        both = min(len(mine), len(plain))  # plain may not come as far in its time
        if not both or mine[:both] != plain[:both]:
            self.bad.append(f"losses of {len(mine)} steps are not those of plain ({len(plain)})")


def handle_of(session: Path) -> RunHandle | None:
    return next((RunHandle(one.path) for one in list_runs() if one.session == session), None)


def run(seed: int, cases: int, seconds: float = math.inf) -> Found:
    """Try jobs; none is begun after so many ``seconds``."""

    def one(number: int, rng: random.Random, folder: Path) -> Tried:
        kind, size = KINDS[number % len(KINDS)], rng.choice(SIZES)
        case = Case(kind, size, rng, folder)
        case.run()
        if os.environ.get("ENTRANCES_LOUD"):
            print(time.strftime("%T"), number, kind, size, case.done, case.bad, flush=True)
        return Tried(case.bad, f"{kind} x{size} [{', '.join(case.done)}]",
                     [one.split(" ")[0] if one.startswith("leave") else " ".join(one.split()[:2])
                      for one in case.done])  # fmt: skip

    return campaign("entrances", one, range(seed, seed + cases), seconds)
