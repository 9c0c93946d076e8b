"""The job's processes: signals to them, ending them on request, and the job's exit code.

Only a parent learns an exit code, and the process that started the run may have ended by then: see
``guardian``. Without an owner the hub does the rest of a killed launcher's work (``Successor``).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pardbg.hub.ranks import processes
from pardbg.hub.ranks.processes import exit_code
from pardbg.hub.run import config as files
from pardbg.hub.run import run_files
from pardbg.hub.run.config import RunConfig
from pardbg.hub.run.output import Copier

if TYPE_CHECKING:
    import psutil

KILL_AFTER_S: Final = 10.0
"""Time in s between ``kill``'s SIGTERM, and SIGKILL to remaining processes."""
MAX_TOLD: Final = 8
STOP_S: Final = 0.3
UNKNOWN: Final = "the launcher was killed: how the job ended is not known"
_PR_SET_CHILD_SUBREAPER: Final = 36
_LOOKED_AT: Final = 80
"""Bytes of a file without ``#!`` that have no 0 if it is a text: as many as bash reads."""
LOOK_S: Final = 0.1
REAP_S: Final = 1.0
"""Maximum time for the job's new parent to record its exit code."""


def as_script(argv: Sequence[str], path: str | None, error: OSError) -> list[str] | None:
    """Return the command line for a file that the kernel does not take for a program, as a shell
    and execvp(3) do: a text without ``#!`` is a script of /bin/sh. None: it is not a text."""
    found = shutil.which(argv[0], path=path) if error.errno == errno.ENOEXEC else None
    if found is None:
        return None
    try:
        with open(found, "rb") as file:
            text = b"\0" not in file.read(_LOOKED_AT)
    except OSError:
        return None
    return ["/bin/sh", found, *argv[1:]] if text else None


def job_pid(run_dir: Path) -> int | None:
    """Return the pid of the job's first process, its session leader; None if it has ended."""
    job = run_files.read_job(run_dir)
    return job.pid if job is not None and job.alive else None


def send(run_dir: Path, number: int, group: bool) -> bool:
    """Signal the job and note the signal for ``JobEnd.told``; return False without a job."""
    pid = job_pid(run_dir)
    if pid is None:
        return False
    with contextlib.suppress(OSError), open(run_dir / files.TOLD_FILE, "a") as file:
        file.write(f"{time.monotonic_ns()} {number}\n")
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number) if group else os.kill(pid, number)
    return True


def suspend(run_dir: Path, group: bool) -> bool:
    """Stop the job as Ctrl-Z does; return whether its first process is stopped. The kernel ignores
    SIGTSTP in a group whose parents are in other sessions: processes without a handler get
    SIGSTOP."""
    pid = job_pid(run_dir)
    if pid is None:
        return False
    for member in processes.group(pid) if group else [pid]:
        number = signal.SIGTSTP if processes.handles(member, signal.SIGTSTP) else signal.SIGSTOP
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, number)
    until = time.monotonic() + STOP_S
    while (fields := processes.stat_fields(pid)) and time.monotonic() < until:
        if fields[0] == "T":
            return True
        time.sleep(0.005)
    return False


def ask_to_kill(run_dir: Path) -> None:
    """Ask the launcher, or the process that replaced it, to end the job."""
    os.close(os.open(run_dir / files.KILL_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


class Killing:
    """Ends the job on request: SIGTERM to its group, later SIGKILL to each process by itself."""

    def __init__(self, run_dir: Path) -> None:
        self._dir = run_dir
        self._victims: list[psutil.Process] = []
        self._at = 0.0
        self._begun = False

    def tick(self) -> None:
        """Do the steps that are due."""
        if not self._begun and (self._dir / files.KILL_FILE).exists():
            self._begin()
        if self._victims and time.monotonic() >= self._at:
            self.finish()

    def finish(self) -> None:
        """Send SIGKILL to the processes that are left."""
        if not self._victims:
            return
        import psutil

        victims, self._victims = self._victims, []
        for victim in victims:  # psutil knows a recycled pid from the process it noted
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()

    def _begin(self) -> None:
        """Send SIGTERM. torchrun's ranks lead sessions of their own: note them while they can be
        found as its descendants."""
        import psutil  # slow to import, and most runs end by themselves

        self._begun = True
        pid = job_pid(self._dir)
        with contextlib.suppress(psutil.NoSuchProcess):
            if pid is not None:
                top = psutil.Process(pid)
                self._victims = [top, *top.children(recursive=True)]
        send(self._dir, signal.SIGTERM, group=True)
        self._at = time.monotonic() + KILL_AFTER_S


def write_exit(
    run_dir: Path, code: int | None, restarts: int = 0, error: str = "", *, untold: bool = False
) -> None:
    """Record the job's end. ``code``: as waitpid returns it, < 0 for a signal; None: unknown.
    ``untold``: see ``JobEnd``."""
    shell_code = code if code is None or code >= 0 else 128 - code
    run_files.write_end(run_dir, run_files.JobEnd(
        shell_code, max(0, -(code or 0)), error, time.monotonic_ns(), time.time_ns(), restarts,
        _signals_sent(run_dir), untold,
    ))  # fmt: skip


def _signals_sent(run_dir: Path) -> tuple[tuple[int, int], ...]:
    try:
        lines = (run_dir / files.TOLD_FILE).read_text().splitlines()[:MAX_TOLD]
        return tuple((int(when), int(number)) for when, number in map(str.split, lines))
    except (OSError, ValueError):
        return ()


def adopt_orphans(adopt: bool = True) -> None:
    """Become the parent of orphaned descendants: the job of a killed launcher can be waited for."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


def reap(run_dir: Path) -> None:
    """Record the end of a job that became our child when all in between were killed."""
    job = run_files.read_job(run_dir)
    if job is None or run_files.has_ended(run_dir):
        return
    with contextlib.suppress(ChildProcessError, OSError):
        done, status = os.waitpid(job.pid, os.WNOHANG)
        if done:
            write_exit(run_dir, os.waitstatus_to_exitcode(status))


def unreaped_code(run_dir: Path) -> int | None:
    """Return the exit code of a job that ended and is not reaped yet; None: too late."""
    job = run_files.read_job(run_dir)
    return exit_code(job.pid, job.start) if job is not None else None


class Successor:
    """The hub's stand-in for a killed launcher: copies the output of a job without an owner, ends
    the job on request, and records its end."""

    def __init__(self, config: RunConfig, sources: list[int]) -> None:
        self._dir = config.dir
        self._sources = sources
        """The job's stdout and stderr in memory; empty: it has an owner (see ``flow``)."""
        self._killing = Killing(config.dir)
        self._launch = run_files.read_launch(config.dir)
        launch = self._launch or run_files.Launch()
        self._others = {"guardian": launch.guardian, "keeper": launch.keeper}
        if config.owner_pid is not None:
            self._others["owner"] = run_files.Process(config.owner_pid, config.owner_start)
        self._copier: Copier | None = None
        self._look_at = 0.0
        self._ended_at = 0.0
        self._code: int | None = None
        self.took_over = False

    def tick(self) -> list[str]:
        """Do the steps due; return the processes just killed: launcher, guardian, keeper, owner."""
        now = time.monotonic()
        if self._launch is None or now < self._look_at:
            return []
        self._look_at = now + LOOK_S
        lost = [] if run_files.has_ended(self._dir) else self._find_lost()
        if self.took_over:
            self._killing.tick()
            self._record_end(now)
        return lost

    def _find_lost(self) -> list[str]:
        lost = [name for name, other in self._others.items() if not (other and other.alive)]
        for name in lost:
            del self._others[name]
        launcher = self._launch.launcher if self._launch else None
        if not self.took_over and not (launcher and launcher.alive):
            self.took_over = True
            if self._sources:
                self._copier = Copier(self._dir, self._sources)
            lost.append("launcher")
        return lost

    def finish(self) -> None:
        """Copy the rest of the job's output."""
        if self._copier is not None:
            self._copier.finish()
        self._killing.finish()

    def _record_end(self, now: float) -> None:
        if run_files.has_ended(self._dir) or job_pid(self._dir) is not None:
            return
        if self._code is None:
            self._code = unreaped_code(self._dir)
        self._ended_at = self._ended_at or now
        if now - self._ended_at >= REAP_S:
            error = UNKNOWN if self._code is None else ""
            write_exit(self._dir, self._code, error=error)
