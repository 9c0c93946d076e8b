"""The launcher process: parent of hub and job, restarts a dead hub, keeps the job's exit code.

It can be killed: its parent, the ``guardian``, becomes the job's, or that one's parent, the keeper.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import subprocess
import termios
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pardbg_agent
from pardbg.hub.ranks.processes import start_time
from pardbg.hub.removal import remove_unstarted
from pardbg.hub.run import config as files
from pardbg.hub.run import guardian, run_files, signals
from pardbg.hub.run.config import RunConfig
from pardbg.hub.run.jobs import Killing, adopt_orphans, as_script, write_exit
from pardbg.hub.run.output import Copier, memory_files
from pardbg.hub.run.steward import Owner, Stdio, Steward
from pardbg.words import duration
from pardbg_agent import wire
from pardbg_agent.sender.wake import WakePipe

HUB_START_S: Final = 60.0
"""Maximum time for the hub to listen: on a crowded host imports take long."""
HUB_POLL_S: Final = 0.003
TICK_S: Final = 0.2
RESERVED: Final = (files.EXIT_FILE, files.HUB_FILE, files.LAUNCH_FILE, files.RECORDED_FILE)
"""Files written when the disk is full, too."""


class Launcher:
    """Launcher of one run. ``run`` returns when the job has ended and the hub is done."""

    def __init__(
        self,
        config: RunConfig,
        stdio: Stdio | None,
        sources: list[int],
        owner: Owner,
        umask: int,
        above: list[run_files.Process],
    ) -> None:
        """``sources``: output of a job without an owner, in memory: copied by the launcher, or by
        the hub if the launcher is killed. ``above``: keeper and guardian."""
        self.config = config
        self.dir = config.dir
        self.hub: subprocess.Popen[bytes] | None = None
        self.job: subprocess.Popen[bytes] | None = None
        self.restarts = 0
        self._owner = owner
        self._stdio = stdio
        """Owner's streams; None: the job has no owner, and its output is only kept."""
        self._umask = umask
        """Umask of the job."""
        self._copier: Copier | None = None
        self._steward: Steward | None = None
        self._hub_given_up = False
        self._hub_retry_at = 0.0
        self._killing = Killing(self.dir)
        self._keeper, self._guardian = above
        self._pipe = WakePipe()
        """Pipe woken by each signal, a child's end included."""
        self._sources = sources
        if stdio is not None:
            self._steward = Steward(stdio, owner, signals.LAUNCHER + signals.GUARDIAN)

    def run(self) -> None:
        """Start hub and job, look after them, and record the job's end."""
        self._catch_signals()
        for name in RESERVED:
            files.reserve(self.dir / name)
        self._note_launch()
        problem = self._start_both()
        if problem is not None:
            self._give_up(problem)
            return
        self._look_after()
        self._end_hub()
        if self._steward is not None:
            self._steward.restore()  # an owner that was killed may have been on its way out
            self._steward.linger(self.dir)

    def _give_up(self, problem: str) -> None:
        if self.hub is not None:
            self.hub.kill()
            self.hub.wait()
        write_exit(self.dir, 2, self.restarts, problem)
        if self._owner.gone:  # no process is left to read why
            remove_unstarted(self.dir.name, [self.dir.parent], files.shm_root())

    def _start_both(self) -> str | None:
        try:
            self._start_hub()
            problem = self._wait_hub()
            if self._steward is not None:
                self._steward.turn(self.dir)
            return problem or self._start_job()
        except (OSError, RuntimeError) as error:  # no process, thread or descriptor to be had
            return f"cannot start a process: {error}"

    # -- the hub

    def _start_hub(self) -> None:
        heard = None if self._stdio is None else self._stdio.heard
        self.hub = guardian.start_hub(self.dir, sources=self._sources, heard=heard)

    def _wait_hub(self) -> str | None:
        assert self.hub is not None
        deadline = time.monotonic() + HUB_START_S
        while run_files.read_hub(self.dir) is None and not self._owner.gone:
            if self.hub.poll() == -signal.SIGKILL and self.restarts < guardian.MAX_RESTARTS:
                self.restarts += 1
                self._start_hub()
            elif self.hub.poll() is not None:
                return f"the hub did not start: {self._last_log_line()}"
            if time.monotonic() > deadline:
                self.hub.kill()
                took = duration(HUB_START_S * 1e9)
                return f"the hub did not start in {took}: {self._last_log_line()}"
            time.sleep(HUB_POLL_S)
        return None

    def _last_log_line(self) -> str:
        try:
            log = (self.dir / files.HUB_LOG).read_text(errors="replace")
        except OSError:
            log = ""
        lines = [line for line in log.splitlines() if line.strip()]
        line = lines[-1] if lines else f"no reason given, see {self.dir / files.HUB_LOG}"
        return line.removeprefix("pardbg hub: ")

    def _keep_hub(self) -> None:
        if self.hub is None or self.hub.poll() is None or self._hub_given_up:
            return
        if self.hub.returncode == 0 or self.restarts >= guardian.MAX_RESTARTS:
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
        """Wait for the hub, which ends by itself after the job; restart one killed too early."""
        deadline = time.monotonic() + guardian.END_S
        while self.hub is not None and time.monotonic() < deadline:
            if self.hub.poll() is None:
                self._pipe.wait(0.05)
            elif self.hub.returncode in (0, 2) or self.restarts >= guardian.MAX_RESTARTS:
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
        if self._owner.gone:
            return "the process that started the run was killed before there was a job"
        argv, stdio = list(self.config.argv), self._stdio
        stdin = os.open(os.devnull, os.O_RDONLY) if stdio is None else stdio.stdin
        out, err = self._sources if stdio is None else (stdio.stdout, stdio.stderr)
        terminal = stdio is not None and stdio.terminal
        try:
            self.job = _started(
                argv, self._job_env(), stdin=stdin, stdout=out, stderr=err,
                start_new_session=True, umask=self._umask,
                preexec_fn=lambda: _begin(self.dir, terminal),
            )  # fmt: skip
        except OSError as error:
            return f"cannot run {argv[0]!r}: {error.strerror or error}"
        if self.config.shown != self.config.argv:
            with contextlib.suppress(OSError):
                self.config.without_secrets().save()
        if stdio is None:
            os.close(stdin)
            self._copier = Copier(self.dir, self._sources)
        else:
            stdio.close_job_ends()
        self._note_launch()
        return None

    def _job_env(self) -> dict[str, str]:
        env = job_env(dict(os.environ), self.dir)
        if self._stdio is None:  # no stdin: pdb would only end the job
            env.setdefault("PYTHONBREAKPOINT", "pardbg_agent.control.no_terminal.hook")
        return env

    def _look_after(self) -> None:
        assert self.job is not None
        while (code := ended(self.job.pid)) is None:
            self._pipe.wait(TICK_S)
            self._keep_hub()
            self._killing.tick()
            if self._steward is not None:
                if os.getppid() != self._guardian.pid:
                    self._steward.members = signals.LAUNCHER
                self._steward.turn(self.dir)
        if self._copier is not None:
            self._copier.finish()
        if self._steward is not None:
            self._steward.flow.catch_up()
        known = None if self.config.attached else code
        write_exit(self.dir, known, self.restarts, untold=self._untold)
        self.job.wait()
        self._killing.finish()

    @property
    def _untold(self) -> bool:
        return self._stdio is not None and self._owner.gone

    def _catch_signals(self) -> None:
        signals.report(signals.LAUNCHER, self._stdio.heard if self._stdio is not None else -1)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._pipe.write_fd, warn_on_full_buffer=False)

    def _note_launch(self) -> None:
        found = run_files.Launch(run_files.this_process(), self._guardian, self._keeper)
        if self.job is not None:
            job = run_files.Process(self.job.pid, start_time(self.job.pid))
            found = replace(found, job=job)
        run_files.write_launch(self.dir, found)


def ended(pid: int) -> int | None:
    """Return a child's exit code (< 0: a signal) without reaping it; None: it runs.

    If this process is killed before it records the code, the child's next parent can still read it.
    """
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _started(argv: list[str], env: dict[str, str], **options: Any) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(argv, env=env, **options)
    except OSError as error:
        script = as_script(argv, env.get("PATH"), error)
        if script is None:
            raise
        return subprocess.Popen(script, env=env, **options)


def _begin(run_dir: Path, terminal: bool) -> None:
    """Note the process that is about to become the job: from here on it needs no launcher."""
    if terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    with contextlib.suppress(OSError):
        run_files.write_job(run_dir)


def job_env(env: dict[str, str], run_dir: Path) -> dict[str, str]:
    """Return the environment that makes every Python process of the job load the agent."""
    path = env.get("PYTHONPATH")
    boot = str(Path(pardbg_agent.__file__).parent / "boot")
    env["PYTHONPATH"] = os.pathsep.join([boot, *([path] if path else [])])
    env[wire.ENV_RUN] = str(run_dir)
    env[wire.ENV_LINES] = "1"  # not unbuffered: a line and its end are two writes then
    return env


def main(argv: list[str]) -> int:
    """``RUN ROOT… --alive FD --behind FD [--stdio FD,… [--terminal]]``: see ``start``."""
    parser = argparse.ArgumentParser(prog="pardbg launch")
    parser.add_argument("run")
    parser.add_argument("roots", type=Path, nargs="*")
    parser.add_argument("--alive", type=int, required=True)
    parser.add_argument("--behind", type=int, required=True)  # open as long as one of us lives
    parser.add_argument("--stdio")
    parser.add_argument("--terminal", action="store_true")
    words = parser.parse_args(argv)
    umask = os.umask(0o077)
    stdio = Stdio.of(words.stdio, words.terminal) if words.stdio else None
    signals.report(signals.GUARDIAN, stdio.heard if stdio is not None else -1)
    owner = Owner(words.alive)
    sources = [] if stdio is not None else [*memory_files()]
    above: list[run_files.Process] = []
    for keeper in (True, False):
        above.append(run_files.this_process())
        adopt_orphans()
        if child := os.fork():
            made = guardian.Guardian(words.run, words.roots, stdio, sources, owner, keeper=keeper)
            made.wait(child)
            return 0
    with contextlib.suppress(BrokenPipeError):
        os.write(words.behind, guardian.READY)
    run_dir = guardian.wait_for_directory(words.alive)
    if run_dir is None:
        remove_unstarted(words.run, words.roots, files.shm_root())
    else:
        Launcher(files.load(run_dir), stdio, sources, owner, umask, above).run()
    return 0
