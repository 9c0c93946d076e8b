"""Kills and stops at random moments of real runs: what dies, dies alone.

Whatever of pardbg is killed or stopped, the job's output and exit code are those of a run without
pardbg. Afterwards no process is left, the session loads, and a lost process is said in it.
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import psutil

from pardbg.analysis.answers.report import report
from pardbg.hub.run import config as files
from pardbg.hub.run.run_files import Launch, read_hub, read_launch
from pardbg.hub.run.runs import list_runs
from pardbg.hub.run.start import RunHandle
from pardbg.lab.recipes import catalogue
from pardbg.session.reader import SessionError, load
from tests.distributed.owned import PARDBG
from tests.distributed.runs import fake_job
from tests.harness import Found, Tried, campaign, pardbg_run
from tests.processes import comes_true, end_tree, rank_env, run_argv

LIMIT_S = 240.0
STOP_S = 1.0
LEFT_S = 15.0
"""How long a hub that has lost its launcher may take to end after the job."""
VICTIMS = ("launcher", "hub", "viewer", "rank", "launcher+hub", "hub+viewer", "guardian", "keeper",
           "launcher+guardian+hub", "stop hub", "stop launcher", "stop viewer", "stop run",
           "ctl pause", "signal all")  # fmt: skip
MORE = 6
"""Further acts in each run that trains: starting one takes longer than all of them."""


REAL = ("ddp", "1f1b", "zero3")
MOMENTS = ("at random", "at random", "paused", "at a breakpoint", "at the end")
RAISES = "fault:exception"
"""Its moment is the hold of the rank that raised."""


def programs() -> dict[str, list[str]]:
    own = {"fake": fake_job(2, 400, 0.004)}
    steps = {"ddp": 24, "1f1b": 16, "zero3": 16, RAISES: 24}
    return own | {name: catalogue.command(name, 2, n, (), 1) for name, n in steps.items()}


class Case:
    """One run, what is done to it, and what is wrong with what it left."""

    def __init__(
        self, name: str, program: list[str], plain: tuple[int, list[str]], rng: random.Random
    ) -> None:
        self._program, self._plain, self._rng = program, plain, rng
        self._moment = "raised" if name == RAISES else rng.choice(MOMENTS)
        self._acts = rng.choice((1, 1, 2)) + (MORE if name in REAL else 0)
        self.bad: list[str] = []
        self.done: list[str] = [self._moment]
        self._viewers: list[subprocess.Popen[bytes]] = []
        self.unsaid = False
        """A process was lost and the session does not say so: it may have been after the end."""

    def run(self, folder: Path) -> None:
        session = folder / "s.mcap"
        hold = ["--on-exception", "hold:10s"] if self._moment == "raised" else []
        run = pardbg_run(self._program, folder, *hold)
        try:
            handle = self._wait_run(run, session)
            if handle is not None:
                self._arrive(handle)
                for _ in range(self._acts):
                    if "rank" in self.done or handle.ended():
                        break
                    pauses = (0.0, 0.05, 0.5, 1.5, 3.0) if self._acts < MORE else (1.0, 8.0, 8.0)
                    time.sleep(self._rng.choice(pauses) * self._rng.random())
                    self._act(handle, run)
            if self._moment in (
                "raised",
                "at a breakpoint",
            ):  # ranks that an open viewer keeps held
                self._end_viewers()
            code = run.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.bad.append("hangs")
            end_tree(run.pid)
            run.wait()
            return
        finally:
            self._end_viewers()
        self._judge(code, folder, session, handle)

    def _end_viewers(self) -> None:
        for viewer in self._viewers:
            viewer.kill()
            viewer.wait()

    def _wait_run(self, run: subprocess.Popen[bytes], session: Path) -> RunHandle | None:
        found: list[Path] = []

        def look() -> bool:
            found[:] = [one.path for one in list_runs() if one.session == session]
            return bool(found) or run.poll() is not None

        comes_true(look, 20)
        return RunHandle(found[0]) if found else None

    def _arrive(self, handle: RunHandle) -> None:
        """Wait for the moment."""
        if self._moment == "paused":
            self._ctl(handle, "--lease", "4", "pause")
        elif self._moment == "at a breakpoint":
            self._ctl(handle, "--lease", "4", "tbreak", "step==2")
        notices, ends = handle.run_dir / files.NOTICES_FILE, self._moment == "at the end"
        if ends or self._moment == "raised":
            comes_true(lambda: not handle.job_alive() or (not ends and notices.exists()), 40)

    def _ctl(self, handle: RunHandle, *words: str) -> None:
        argv = [*PARDBG, "ctl", handle.run, *words]
        subprocess.run(argv, env=rank_env(), capture_output=True, timeout=60, check=False)

    def _act(self, handle: RunHandle, run: subprocess.Popen[bytes]) -> None:
        what = self._rng.choice(VICTIMS)
        if what == "ctl pause":
            self._ctl(handle, "--lease", "2", "pause")
        elif what == "signal all":
            pids = self._pids(handle)
            for name in ("launcher", "hub"):
                self._send(pids.get(name), signal.SIGUSR2)
        elif what.startswith("stop "):
            pid = run.pid if what == "stop run" else self._victim(what[5:], handle)
            self._send(pid, signal.SIGSTOP)
            time.sleep(STOP_S)
            self._send(pid, signal.SIGCONT)
        else:
            victims = [self._victim(name, handle) for name in what.split("+")]
            if None in victims:
                return
            for pid in victims:
                self._send(pid, signal.SIGKILL)
        self.done.append(what)

    def _victim(self, name: str, handle: RunHandle) -> int | None:
        if name == "viewer":
            viewer = subprocess.Popen(
                [sys.executable, "-m", "tests.siege.viewer", str(handle.run_dir)], env=rank_env(),
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            self._viewers.append(viewer)
            time.sleep(self._rng.random())
            return viewer.pid
        return self._pids(handle).get(name)

    def _pids(self, handle: RunHandle) -> dict[str, int]:
        launch = read_launch(handle.run_dir) or Launch()
        processes = {
            "launcher": launch.launcher, "guardian": launch.guardian, "keeper": launch.keeper,
            "hub": read_hub(handle.run_dir), "job": launch.job,
        }  # fmt: skip
        found = {name: one.pid for name, one in processes.items() if one and one.alive}
        try:
            below = psutil.Process(found["job"]).children(recursive=True)
            ranks = [p.pid for p in below if any(w.endswith("python3") or "python" in w
                                                 for w in p.cmdline()[:1])]  # fmt: skip
            if ranks:
                found["rank"] = self._rng.choice(ranks)
        except (KeyError, psutil.Error):
            pass
        return found

    def _send(self, pid: int | None, number: int) -> None:
        if pid is not None:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def _judge(self, code: int, folder: Path, session: Path, handle: RunHandle | None) -> None:
        self._nothing_left(handle)
        self._judge_job(code, folder)
        # Killed before there was a job: it ran without us, and one line says so.
        if "pardbg: NOT recorded, " not in (folder / "err").read_text(errors="replace"):
            self._judge_session(session)

    def _nothing_left(self, handle: RunHandle | None) -> None:
        if handle is not None and not comes_true(lambda: not handle.alive(), LEFT_S):
            self.bad.append("a process of ours is left")

    def _judge_job(self, code: int, folder: Path) -> None:
        hurt = "rank" in self.done
        lines = _steps((folder / "out").read_text(errors="replace"))
        if not hurt and code != self._plain[0]:
            self.bad.append(f"exit code {code}")
        raises = self._moment == "raised"  # and torchrun ends the others, wherever they are
        if not hurt and not raises and lines != self._plain[1]:
            self.bad.append(f"{len(lines)} of {len(self._plain[1])} lines as without pardbg")
        if "Traceback" in (folder / "err").read_text(errors="replace") and not (hurt or raises):
            self.bad.append("a traceback")

    def _judge_session(self, session: Path) -> None:
        try:
            said = report(load(session))
        except SessionError as error:
            self.bad.append(f"session: {error}")
            return
        lost = {"launcher", "hub"} & {*self.done}
        kinds = {finding.kind for finding in said.findings}
        if lost and "recorder-lost" not in kinds:
            self.unsaid = True


def _steps(text: str) -> list[str]:
    """Lines with a loss or a value: what training says."""
    return sorted(line for line in text.splitlines() if "loss" in line or "value" in line)


def plain(program: list[str]) -> tuple[int, list[str]]:
    done = run_argv(program, env=rank_env(), timeout_s=LIMIT_S)
    return done.code, _steps(done.out)


def run(seed: int, cases: int, seconds: float = math.inf) -> Found:
    """Try kills; none is begun after so many ``seconds``."""
    every = programs()
    baseline = cache(lambda name: plain(every[name]))

    def one(_: int, rng: random.Random, folder: Path) -> Tried:
        name = rng.choice(list(every))
        case = Case(name, every[name], baseline(name), rng)
        case.run(folder)
        unsaid = ["lost, not said (after the end)"] * case.unsaid
        return Tried(case.bad, f"{name} [{', '.join(case.done)}]", [*case.done, *unsaid])

    return campaign("kills", one, range(seed, seed + cases), seconds)
