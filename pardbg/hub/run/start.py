"""Starting a run: ``start_run`` for the command line, the launcher behind it, and its handle.

The launcher is a small process, the parent of hub and job: a viewer that goes, however it goes,
touches neither. The job's output is read by the launcher, or by ``pardbg run``, which passes it on;
a dead hub breaks no pipe of the job's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pardbg.errors import UserError
from pardbg.hub.run import config as files
from pardbg.hub.run import jobs
from pardbg.hub.run.config import Place, RunConfig
from pardbg.hub.run.output import let_stand_in
from pardbg.hub.run.own_process import argv as own_process
from pardbg.hub.run.terminal import Streams
from pardbg.session.rotation import UNLIMITED, PartLimits, part_path
from pardbg.words import duration

START_TIMEOUT_S: Final = 75.0
POLL_S: Final = 0.02
START_POLL_S: Final = 0.003


class RunHandle:
    """A run, live or just ended, by its directory. Raises ConfigError."""

    def __init__(self, run_dir: Path) -> None:
        self.config: RunConfig = files.load(Path(run_dir))
        self.run_dir = Path(run_dir)
        self._launcher: subprocess.Popen[bytes] | None = None

    @property
    def run(self) -> str:
        """Return the run's id."""
        return self.config.run

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def session(self) -> Path:
        """Return the session file."""
        return Path(self.config.session)

    def parts(self) -> list[Path]:
        """Return the existing files of the recording, oldest first: one, unless it is in parts."""
        found = files.read_json(self.run_dir / files.PART_FILE) or {}
        every = [part_path(self.session, n) for n in range(1, int(found.get("part", 1)) + 1)]
        return [path for path in every if path.exists()] or [self.session]

    def recorded(self) -> dict[str, Any] | None:
        """Return what the hub reported of the recording on closing it; None if it never did."""
        return files.read_json(self.run_dir / files.RECORDED_FILE)

    def ended_s(self) -> float:
        """Return when the job ended (or now), in seconds of the wall clock."""
        wall = (files.read_json(self.run_dir / files.EXIT_FILE) or {}).get("wall_ns")
        return wall / 1e9 if isinstance(wall, int) else time.time()

    def ended(self) -> bool:
        """Return whether the job has ended (its recording may still be open)."""
        if not self.launcher_alive():
            jobs.reap(self.run_dir)
        return (self.run_dir / files.EXIT_FILE).exists() or not self.alive()

    def alive(self) -> bool:
        """Return whether launcher, job or hub is there."""
        return self._guarded() or self.launcher_alive() or self.job_alive() or self.hub_alive()

    def launcher_alive(self) -> bool:
        """Return whether hub and job are looked after."""
        launch = files.read_json(self.run_dir / files.LAUNCH_FILE)
        return self._guarded() if launch is None else jobs.is_alive(launch, "pid", "start")

    def _guarded(self) -> bool:
        """We started it, and the process that we started is there."""
        return self._launcher is not None and self._launcher.poll() is None

    def job_alive(self) -> bool:
        return jobs.job_pid(self.run_dir) is not None

    def hub_alive(self) -> bool:
        return jobs.is_alive(files.read_json(self.run_dir / files.HUB_FILE), "pid", "start")

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the job's exit code once everything is written. Raises TimeoutError."""
        begun = time.monotonic()
        while self.alive():
            if timeout_s is not None and time.monotonic() - begun > timeout_s:
                raise TimeoutError(f"{self.run} still runs after {duration(timeout_s * 1e9)}")
            self.ended()
            time.sleep(POLL_S)
        self.ended()
        return self.exit_code(default=1)

    def wait_recorded(self, timeout_s: float) -> bool:
        """Wait until the job has ended and its session is closed; False if that takes longer."""
        try:
            self.wait(timeout_s)
        except TimeoutError:
            return False
        return True

    def exit_code(self, default: int = 1) -> int:
        """Return the job's exit code (128 + signal, as in a shell)."""
        code = (files.read_json(self.run_dir / files.EXIT_FILE) or {}).get("code")
        return code if isinstance(code, int) else default

    def signal(self, number: int, group: bool = True) -> None:
        """Signal the job: its whole process group, or its first process."""
        jobs.send(self.run_dir, number, group)

    def kill(self) -> None:
        """Have the job ended: SIGTERM, and SIGKILL to what is left of it later."""
        jobs.ask_to_kill(self.run_dir)


def start_run(
    argv: Sequence[str],
    *,
    name: str,
    session: Path,
    recipe: str | None = None,
    owner: bool = False,
    env: Mapping[str, str] | None = None,
    limits: PartLimits = UNLIMITED,
    allow_eval: bool = False,
    on_exception_s: float = 0.0,
    loss_pattern: str = "",
    streams: Streams | None = None,
    place: Place | None = None,
) -> RunHandle:
    """Start hub and job; returns when both run. Raises UserError.

    ``owner``: the job ends when this process does. ``env`` replaces the job's environment.
    ``limits``: when the recording goes on in a new file, and how many are kept. ``allow_eval``:
    who has control may run code in held ranks. ``on_exception_s``: how long a rank that
    raised waits for somebody who looks at it. ``loss_pattern``: finds losses in the job's output.
    ``streams``: what the job reads and writes, where the caller passes it through (an owner); else
    it has no stdin, and its output is only kept.
    ``place``: of several nodes, which this is; the hub is on node 0.
    """
    environment = dict(os.environ if env is None else env)
    _check_command(argv, environment)
    config = files.make(
        list(argv), name=name, session=session, recipe=recipe,
        owner_pid=os.getpid() if owner else None, limits=limits,
        allow_eval=allow_eval, on_exception_s=on_exception_s, loss_pattern=loss_pattern,
        place=place,
    )  # fmt: skip
    handle = RunHandle(config.dir)
    words, fds = streams.for_launcher() if streams is not None else ([], ())
    if streams is not None:
        streams.signals.catch()
    with open(config.dir / "launch.log", "wb") as log:
        handle._launcher = subprocess.Popen(
            own_process("pardbg.hub.run.launcher", str(config.dir), *words), env=environment,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=fds,
            # In the owner's group: see `signals`.
            start_new_session=streams is None,
        )  # fmt: skip
    if streams is not None:
        let_stand_in(handle._launcher.pid)
        streams.given()
    _wait_started(handle)
    return handle


def _check_command(argv: Sequence[str], env: Mapping[str, str]) -> None:
    if not argv:
        raise UserError("no command: put it after `--`")
    program = argv[0]
    if shutil.which(program, path=env.get("PATH")) is None:
        if "/" in program and os.path.isfile(program):
            raise UserError(f"cannot run {program!r}: it is not executable")
        raise UserError(f"cannot run {program!r}: no such command; check what follows `--`")


def _wait_started(handle: RunHandle) -> None:
    """Until the job runs (or has ended already); what failed before that is a UserError."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        ended = files.read_json(handle.run_dir / files.EXIT_FILE)
        if ended is not None and ended.get("error"):
            raise UserError(str(ended["error"]))
        launch = files.read_json(handle.run_dir / files.LAUNCH_FILE)
        if ended is not None or (launch is not None and launch.get("job")):
            return
        if not handle.launcher_alive() and handle._launcher is not None:
            words = (handle.run_dir / "launch.log").read_text(errors="replace").splitlines()
            raise UserError(f"the launcher ended: {words[-1] if words else 'no reason given'}")
        if time.monotonic() > deadline:
            handle.kill()
            raise UserError(
                f"the run did not start in {duration(START_TIMEOUT_S * 1e9)}, see {handle.run_dir}"
            )
        time.sleep(START_POLL_S)
