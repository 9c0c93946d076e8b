"""Starting a run: ``start_run`` for the command line, the processes behind it, the run's handle.

The launcher is a small process, the parent of hub and job. Its parent is the guardian, whose parent
is the keeper: the end of any of our processes leaves the job alone. These three exist before the
run's directories are made, so a run that is killed before it has a job leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pardbg.errors import UserError
from pardbg.hub.ranks.processes import MIN_FREE_TASKS, free_tasks, start_time
from pardbg.hub.removal import remove_unstarted
from pardbg.hub.run import config as files
from pardbg.hub.run import jobs, native_build, run_files
from pardbg.hub.run.config import Place, RunConfig, Settings, SetupError
from pardbg.hub.run.guardian import kill_children
from pardbg.hub.run.own_process import argv as own_process
from pardbg.hub.run.terminal import Streams
from pardbg.session.rotation import part_path
from pardbg.words import duration

if TYPE_CHECKING:
    from typing import Unpack

START_TIMEOUT_S: Final = 75.0
POLL_S: Final = 0.02
START_POLL_S: Final = 0.003
END_S: Final = 5.0
"""Maximum time for keeper, guardian and launcher to end without a job."""


class RunHandle:
    """Live or just ended run, by its directory. Raises ConfigError."""

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
        every = [
            part_path(self.session, n) for n in range(1, run_files.read_part(self.run_dir) + 1)
        ]
        return [path for path in every if path.exists()] or [self.session]

    def recorded(self) -> run_files.Recorded | None:
        """Return the result of the recording; None: it goes on, or the hub was killed."""
        return run_files.read_recorded(self.run_dir)

    def ended_s(self) -> float:
        """Return the time of the job's end (or now), in seconds of the wall clock."""
        end = run_files.read_end(self.run_dir)
        return end.wall_ns / 1e9 if end is not None else time.time()

    def ended(self) -> bool:
        """Return whether the job has ended (its recording may still be open)."""
        if not self.launcher_alive():
            jobs.reap(self.run_dir)
        return run_files.has_ended(self.run_dir) or not self.alive()

    def alive(self) -> bool:
        """Return whether launcher, job or hub is alive."""
        return self._guarded() or self.launcher_alive() or self.job_alive() or self.hub_alive()

    def launcher_alive(self) -> bool:
        """Return whether the launcher runs, so that hub and job are looked after."""
        launch = run_files.read_launch(self.run_dir)
        if launch is None or launch.launcher is None:
            return self._guarded()
        return launch.launcher.alive

    def _guarded(self) -> bool:
        return self._launcher is not None and self._launcher.poll() is None

    def job_alive(self) -> bool:
        return jobs.job_pid(self.run_dir) is not None

    def hub_alive(self) -> bool:
        hub = run_files.read_hub(self.run_dir)
        return hub is not None and hub.alive

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the job's exit code once the recording is closed. Raises TimeoutError."""
        begun = time.monotonic()
        while self.alive():
            if timeout_s is not None and time.monotonic() - begun > timeout_s:
                raise TimeoutError(f"{self.run} still runs after {duration(timeout_s * 1e9)}")
            self.ended()
            time.sleep(POLL_S)
        self.ended()
        return self.exit_code()

    def wait_recorded(self, timeout_s: float) -> bool:
        """Wait until the job has ended and its session is closed; False if that takes longer."""
        try:
            self.wait(timeout_s)
        except TimeoutError:
            return False
        return True

    def exit_code(self) -> int:
        """Return the job's exit code as in a shell (1: unknown); 0 for an attached job."""
        end = run_files.read_end(self.run_dir)
        code = 1 if end is None or end.code is None else end.code
        return 0 if self.config.attached else code

    def status(self) -> int:
        """Return the job's end: its exit code, or less than 0 for a signal."""
        end = run_files.read_end(self.run_dir)
        return -end.signal if end is not None and end.signal else self.exit_code()

    def signal(self, number: int, group: bool = True) -> None:
        """Signal the job: its whole process group, or its first process."""
        jobs.send(self.run_dir, number, group)

    def kill(self) -> None:
        """Ask for the job's end: SIGTERM, later SIGKILL to the processes that are left."""
        jobs.ask_to_kill(self.run_dir)


def start_run(
    argv: Sequence[str],
    *,
    name: str,
    session: Path,
    env: Mapping[str, str] | None = None,
    streams: Streams | None = None,
    place: Place | None = None,
    **settings: Unpack[Settings],
) -> RunHandle:
    """Start hub and job and return when both run. Raises UserError; SetupError, which leaves
    nothing of the run behind, where the job could run without pardbg.

    ``env`` replaces the job's environment. ``streams``: the job's streams if the caller is its
    owner; else the job has no stdin, and its output is only kept. ``place``: this node of several;
    the hub is on node 0. ``settings``: see RunConfig.
    """
    environment = dict(os.environ if env is None else env)
    check_command(argv, environment)
    if not start_time(os.getpid()):
        raise SetupError("/proc is not mounted")
    if (room := free_tasks()) < MIN_FREE_TASKS and "attached" not in settings:
        raise SetupError(
            f"only {max(0, room)} more processes and threads are allowed (`ulimit -u`, or pids.max "
            f"of a cgroup), and the job may need them"
        )
    run = files.new_id(name)
    if streams is not None:
        streams.signals.catch()
    behind = _Behind(run, environment, streams)
    try:
        behind.wait_ready()
        config = files.make(
            argv, name=name, run=run, session=session, place=place,
            owner_pid=os.getpid() if streams is not None else None, **settings,
        )  # fmt: skip
        handle = RunHandle(config.dir)
        handle._launcher = behind.process
        behind.tell(config.dir)
        _wait_started(handle, behind)
    except (OSError, UserError) as error:
        behind.end(run)
        with contextlib.suppress(OSError):  # the beginning of the hub's recording
            os.truncate(session, 0)
        raise SetupError(str(error)) from None
    behind.started(alone=streams is None)
    native_build.start(argv, environment)
    return handle


class _Behind:
    """Keeper, guardian and launcher until the run has started. Raises SetupError."""

    def __init__(self, run: str, env: Mapping[str, str], streams: Streams | None) -> None:
        words, fds = streams.for_launcher() if streams is not None else ([], ())
        try:
            self._roots = files.roots()
            (alive, self._alive), (self._end, end) = os.pipe(), os.pipe()
            self._log = os.memfd_create("launch.log", os.MFD_CLOEXEC)
            words += ["--alive", str(alive), "--behind", str(end)]
            self.process = subprocess.Popen(
                own_process("pardbg.hub.run.launcher", run, *map(str, self._roots), *words),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(alive, end, *fds),
                start_new_session=streams is None,
            )  # fmt: skip, and in the owner's group: see `signals`
        except (OSError, UserError) as error:
            raise SetupError(f"cannot start a process: {error}") from None
        for fd in (alive, end):
            os.close(fd)
        if streams is not None:
            streams.close_job_ends()

    def wait_ready(self) -> None:
        """Wait for the launcher. Raises SetupError."""
        poller = select.poll()
        poller.register(self._end, select.POLLIN)
        if not poller.poll(START_TIMEOUT_S * 1000) or not os.read(self._end, 1):
            raise SetupError(f"the launcher ended: {self.last_line()}")

    def tell(self, run_dir: Path) -> None:
        """Tell the run's directory; our end ends the run until the job has started."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._alive, os.fsencode(f"{run_dir}\n"))

    @property
    def gone(self) -> bool:
        """Return whether all processes are gone, and no child is about to become the job."""
        poller = select.poll()
        poller.register(self._end, 0)
        return bool(poller.poll(0))

    def last_line(self) -> str:
        lines = os.pread(self._log, 1 << 16, 0).decode(errors="replace").splitlines()
        return lines[-1] if lines else "killed"

    def started(self, alone: bool) -> None:
        """Let go of the processes once there is a job. ``alone``: the job has no owner."""
        for fd in (self._end, self._log, *([self._alive] if alone else [])):
            os.close(fd)

    def end(self, run: str) -> None:
        """End the processes of a run without a job, and remove the run."""
        os.close(self._alive)
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        kill_children(run)
        remove_unstarted(run, self._roots, files.shm_root())
        for fd in (self._end, self._log):
            os.close(fd)


def check_command(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Check that the command can be run. Raises CommandError with a shell's exit code for it."""
    if not argv:
        raise UserError("no command: put it after `--`")
    program, path = argv[0], env.get("PATH")
    if shutil.which(program, path=path) is not None:
        return
    why = ""
    if "/" in program:
        try:
            os.stat(program)
            why = "it is not executable"
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
    elif program:
        folders = (path or os.defpath).split(os.pathsep)
        if any(os.path.exists(os.path.join(folder, program)) for folder in folders):
            why = "it is not executable"
    if why:
        raise CommandError(f"cannot run {program!r}: {why}", 126)
    raise CommandError(f"cannot run {program!r}: no such command; check the job's command", 127)


class CommandError(UserError):
    """Raised for a command of the job that cannot be run. One line."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def _wait_started(handle: RunHandle, behind: _Behind) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        gone = behind.gone  # read first: once they are gone, nothing more is written
        end, launch = run_files.read_end(handle.run_dir), run_files.read_launch(handle.run_dir)
        if end is not None and end.error:
            raise SetupError(end.error)
        if end is not None or (launch is not None and launch.job is not None):
            return
        if gone and run_files.read_job(handle.run_dir) is not None:
            return
        if gone:
            raise SetupError(f"the launcher ended: {behind.last_line()}")
        if time.monotonic() > deadline:
            raise SetupError(f"the run did not start in {duration(START_TIMEOUT_S * 1e9)}")
        time.sleep(START_POLL_S)
