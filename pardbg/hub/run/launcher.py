"""The launcher process: parent of hub and job, restarts a dead hub, keeps the job's exit code."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Final

import psutil

import pardbg_agent
from pardbg.hub.ranks.rings import start_time
from pardbg.hub.run import config as files
from pardbg.hub.run.config import ConfigError, RunConfig
from pardbg_agent import wire

MAX_RESTARTS: Final = 5
HUB_START_S: Final = 15.0
HUB_END_S: Final = 20.0
"""How long the hub may take to write the rest after the job's end."""
KILL_AFTER_S: Final = 10.0
"""``kill``: SIGTERM, and SIGKILL to what is left after this long."""
TICK_S: Final = 0.2
MAX_TOLD: Final = 8
PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM)


class Launcher:
    """One run's. ``run`` returns when the job has ended and the hub is done."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.dir = config.dir
        self.hub: subprocess.Popen[bytes] | None = None
        self.job: subprocess.Popen[bytes] | None = None
        self.restarts = 0
        self._hub_given_up = False
        self._hub_retry_at = 0.0
        self._signals: list[int] = []
        self._told: list[tuple[int, int]] = []
        """(when, signal): what the job was told to end by, the first ones."""
        self._kill_at = 0.0
        self._victims: list[psutil.Process] = []
        self._owner = start_time(config.owner_pid) if config.owner_pid else ""
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        """Start both, look after them, leave exit.json."""
        self._catch_signals()
        self._say_launch()
        self._start_hub()
        problem = self._wait_hub()
        if problem is None:
            problem = self._start_job()
        if problem is not None:
            self._exit(2, error=problem)
        else:
            self._look_after()
        self._end_hub()

    # -- the hub

    def _start_hub(self) -> None:
        with open(self.dir / files.HUB_LOG, "ab") as log:
            self.hub = subprocess.Popen(
                [sys.executable, "-m", "pardbg.hub", str(self.dir)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def _wait_hub(self) -> str | None:
        """Until it listens; else why it does not."""
        assert self.hub is not None
        deadline = time.monotonic() + HUB_START_S
        while files.read_json(self.dir / files.HUB_FILE) is None:
            if self.hub.poll() is not None:
                return f"the hub did not start: {self._last_words()}"
            if time.monotonic() > deadline:
                self.hub.kill()
                return f"the hub did not start in {HUB_START_S:.0f} s: {self._last_words()}"
            time.sleep(0.01)
        return None

    def _last_words(self) -> str:
        try:
            lines = (self.dir / files.HUB_LOG).read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        line = lines[-1] if lines else f"no reason given, see {self.dir / files.HUB_LOG}"
        return line.removeprefix("pardbg hub: ")

    def _keep_hub(self) -> None:
        """A killed hub comes back; one that ended on purpose (SIGTERM) does not."""
        if self.hub is None or self.hub.poll() is None or self._hub_given_up:
            return
        if self.hub.returncode == 0 or self.restarts >= MAX_RESTARTS:
            self._hub_given_up = True
            return
        now = time.monotonic()
        if not self._hub_retry_at:
            self._hub_retry_at = now + 0.1 * 2**self.restarts
        if now >= self._hub_retry_at:
            self.restarts += 1
            self._hub_retry_at = 0.0
            self._start_hub()

    def _end_hub(self) -> None:
        """It ends by itself after exit.json; a hub that died too early gets one more chance."""
        deadline = time.monotonic() + HUB_END_S
        while self.hub is not None and time.monotonic() < deadline:
            if self.hub.poll() is None:
                self._wait(0.05)
            elif self.hub.returncode in (0, 2) or self.restarts >= MAX_RESTARTS:
                return
            else:
                self.restarts += 1
                self._start_hub()
        if self.hub is not None and self.hub.poll() is None:
            self.hub.terminate()
            try:
                self.hub.wait(5)
            except subprocess.TimeoutExpired:
                self.hub.kill()
                self.hub.wait()

    # -- the job

    def _start_job(self) -> str | None:
        argv = list(self.config.argv)
        try:
            with (
                open(self.dir / files.OUT_FILE, "ab") as out,
                open(self.dir / files.ERR_FILE, "ab") as err,
            ):
                self.job = subprocess.Popen(
                    argv, cwd=self.config.cwd, env=job_env(dict(os.environ), self.dir),
                    stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            return f"cannot run {argv[0]!r}: {error.strerror or error}"
        self._say_launch()
        return None

    def _look_after(self) -> None:
        assert self.job is not None
        while self.job.poll() is None:
            self._wait(TICK_S)
            self._pass_signals_on()
            self._keep_hub()
            self._check_owner()
            self._kill_if_due()
        code = self.job.returncode
        self._exit(code if code >= 0 else 128 - code, signal_number=max(0, -code))
        self._kill_if_due(now=bool(self._victims))

    def _exit(self, code: int, *, signal_number: int = 0, error: str = "") -> None:
        files.write_json(
            self.dir / files.EXIT_FILE,
            {
                "code": code, "signal": signal_number, "error": error,
                "t_ns": time.monotonic_ns(), "wall_ns": time.time_ns(),
                "hub_restarts": self.restarts, "told": self._told[:MAX_TOLD],
            },
        )  # fmt: skip

    # -- signals

    def _catch_signals(self) -> None:
        def note(number: int, frame: FrameType | None) -> None:
            self._signals.append(number)

        for number in (*PASSED_ON, signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, note)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)

    def _wait(self, timeout_s: float) -> None:
        """Until a signal (also a child's end), or the time is up."""
        if select.select([self._wake_r], [], [], timeout_s)[0]:
            os.read(self._wake_r, 4096)

    def _pass_signals_on(self) -> None:
        signals, self._signals = self._signals, []
        for number in signals:
            if number == signal.SIGUSR1:
                self._kill()
            elif number in PASSED_ON:
                self._told.append((time.monotonic_ns(), number))
                self._to_job(number)

    def _to_job(self, number: int) -> None:
        if self.job is not None and self.job.poll() is None:
            try:
                os.killpg(self.job.pid, number)
            except ProcessLookupError:
                pass

    def _kill(self) -> None:
        """End the job on purpose. torchrun's ranks lead sessions of their own, so they are noted
        now, while they can be found as its descendants."""
        if self.job is None:
            return
        try:
            top = psutil.Process(self.job.pid)
            self._victims = [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        self._to_job(signal.SIGTERM)
        self._kill_at = time.monotonic() + KILL_AFTER_S

    def _kill_if_due(self, now: bool = False) -> None:
        if not self._victims or not (now or time.monotonic() >= self._kill_at):
            return
        for victim in self._victims:
            try:
                victim.kill()  # psutil knows a recycled pid from the process it noted
            except psutil.NoSuchProcess:
                pass
        self._victims = []

    def _check_owner(self) -> None:
        """``pardbg run``: its end is the job's end, however it came."""
        owner = self.config.owner_pid
        if owner and self._owner and start_time(owner) != self._owner:
            self._owner = ""
            self._kill()

    # -- small things

    def _say_launch(self) -> None:
        value = {"pid": os.getpid(), "start": start_time(os.getpid())}
        if self.job is not None:
            value["job"] = self.job.pid
        files.write_json(self.dir / files.LAUNCH_FILE, value)


def job_env(env: dict[str, str], run_dir: Path) -> dict[str, str]:
    """What makes every Python process of the job load the agent, and nothing else."""
    path = env.pop("PARDBG_JOB_PYTHONPATH", None)
    boot = str(Path(pardbg_agent.__file__).parent / "boot")
    env["PYTHONPATH"] = os.pathsep.join([boot, *([path] if path else [])])
    env[wire.ENV_RUN] = str(run_dir)
    env.setdefault("PYTHONUNBUFFERED", "1")
    return env


def main(argv: list[str]) -> int:
    """``python -m pardbg.hub.run.start RUNDIR``"""
    if len(argv) != 1:
        print("usage: python -m pardbg.hub.run.start RUNDIR", file=sys.stderr)
        return 2
    try:
        config = files.load(Path(argv[0]))
    except ConfigError as error:
        print(f"pardbg launch: {error}", file=sys.stderr)
        return 2
    Launcher(config).run()
    return 0
