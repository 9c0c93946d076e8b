"""The job's processes: what runs, ending it when somebody asks for that, and how it ended.

Only a parent learns how a process ended, and who started the run may have left by then: see
``guardian``. The hub does the rest of a killed launcher's work where there is no owner
(``Successor``).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pardbg.hub.ranks import processes
from pardbg.hub.ranks.processes import exit_code, start_time
from pardbg.hub.run import config as files
from pardbg.hub.run.config import RunConfig
from pardbg.hub.run.output import Copier

if TYPE_CHECKING:
    import psutil

KILL_AFTER_S: Final = 10.0
"""``kill``: SIGTERM, and SIGKILL to what is left after this long."""
MAX_TOLD: Final = 8
STOP_S: Final = 0.3
UNKNOWN: Final = "the launcher was killed: how the job ended is not known"
_PR_SET_CHILD_SUBREAPER: Final = 36
LOOK_S: Final = 0.1
REAP_S: Final = 1.0
"""Maximum time for the job's new parent to write down how it ended."""


def is_alive(said: dict[str, Any] | None, pid: str, start: str) -> bool:
    """Return whether the process that a file of the run names in these fields exists."""
    found = said or {}
    number = found.get(pid)
    return isinstance(number, int) and start_time(number) == found.get(start, "") != ""


def job_pid(run_dir: Path) -> int | None:
    """Return the pid of the job's first process, its session leader; None if it has ended."""
    launch = launched(run_dir)
    return int(launch["job"]) if is_alive(launch, "job", "job_start") else None


def launched(run_dir: Path) -> dict[str, Any]:
    """Return what launcher and job have said of themselves so far."""
    told = (files.read_json(run_dir / name) for name in (files.JOB_FILE, files.LAUNCH_FILE))
    return {name: value for one in told if one for name, value in one.items()}


def send(run_dir: Path, number: int, group: bool) -> bool:
    """Signal the job, and note it for the account of how the job ended. False: no job."""
    pid = job_pid(run_dir)
    if pid is None:
        return False
    with contextlib.suppress(OSError), open(run_dir / files.TOLD_FILE, "a") as file:
        file.write(f"{time.monotonic_ns()} {number}\n")
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number) if group else os.kill(pid, number)
    return True


def suspend(run_dir: Path, group: bool) -> bool:
    """Stop the job as Ctrl-Z does; return whether its first process stands still. The kernel
    ignores SIGTSTP in a group whose parents are in other sessions: those without a handler are
    stopped."""
    pid = job_pid(run_dir)
    if pid is None:
        return False
    for one in processes.group(pid) if group else [pid]:
        number = signal.SIGTSTP if processes.handles(one, signal.SIGTSTP) else signal.SIGSTOP
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, number)
    until = time.monotonic() + STOP_S
    while (fields := processes.stat_fields(pid)) and time.monotonic() < until:
        if fields[0] == "T":
            return True
        time.sleep(0.005)
    return False


def ask_to_kill(run_dir: Path) -> None:
    """Have the job ended by whoever looks after it."""
    os.close(os.open(run_dir / files.KILL_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


class Killing:
    """Ends the job when somebody asked for it. Whoever dies, dies alone."""

    def __init__(self, run_dir: Path) -> None:
        self._dir = run_dir
        self._victims: list[psutil.Process] = []
        self._at = 0.0
        self._begun = False

    def tick(self) -> None:
        """Do what is due."""
        if not self._begun and (self._dir / files.KILL_FILE).exists():
            self._begin()
        if self._victims and time.monotonic() >= self._at:
            self.finish()

    def finish(self) -> None:
        """SIGKILL to what is left."""
        if not self._victims:
            return
        import psutil

        victims, self._victims = self._victims, []
        for victim in victims:  # psutil knows a recycled pid from the process it noted
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()

    def _begin(self) -> None:
        """torchrun's ranks lead sessions of their own, so they are noted now, while they can be
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
    """exit.json. ``code``: as waitpid tells it, < 0 for a signal; None: not known. ``untold``:
    the owner that waited for it was killed, so it is kept for who asks later."""
    said = code if code is None or code >= 0 else 128 - code
    files.write_json(
        run_dir / files.EXIT_FILE,
        {
            "code": said, "signal": max(0, -(code or 0)), "error": error,
            "t_ns": time.monotonic_ns(), "wall_ns": time.time_ns(),
            "hub_restarts": restarts, "told": _told(run_dir), "untold": untold,
        },
    )  # fmt: skip


def _told(run_dir: Path) -> list[tuple[int, int]]:
    """(when, signal): what the job was told to end by, the first ones."""
    try:
        lines = (run_dir / files.TOLD_FILE).read_text().splitlines()[:MAX_TOLD]
        return [(int(when), int(number)) for when, number in map(str.split, lines)]
    except (OSError, ValueError):
        return []


def adopt_orphans(adopt: bool = True) -> None:
    """Become the parent of orphans below: a job whose launcher was killed can be waited for."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


def noted(run_dir: Path) -> int | None:
    """Return the pid of the job's first process, running or ended; None: not started."""
    pid = launched(run_dir).get("job")
    return pid if isinstance(pid, int) else None


def reap(run_dir: Path) -> None:
    """Launcher and guardian are gone: if the job has become our child and ended, write down how."""
    pid = noted(run_dir)
    if pid is None or (run_dir / files.EXIT_FILE).exists():
        return
    with contextlib.suppress(ChildProcessError, OSError):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            write_exit(run_dir, os.waitstatus_to_exitcode(status))


def last_seen(run_dir: Path) -> int | None:
    """Return how the job ended, if that is not recorded yet (None: too late)."""
    launch = launched(run_dir)
    pid = launch.get("job")
    return exit_code(pid, str(launch.get("job_start"))) if isinstance(pid, int) else None


class Successor:
    """Looks whether the launcher is there; from when it is not, copies the job's output (if it has
    no owner), ends the job where that was asked for, and says that it has ended."""

    def __init__(self, config: RunConfig, sources: list[int]) -> None:
        self._dir = config.dir
        self._sources = sources
        """The job's stdout and stderr in memory; empty: it has an owner (see ``flow``)."""
        self._killing = Killing(config.dir)
        self._launch = files.read_json(config.dir / files.LAUNCH_FILE)
        self._others = {"guardian": dict(self._launch or {})}
        if config.owner_pid is not None:
            owner = {"owner": config.owner_pid, "owner_start": config.owner_start}
            self._others["owner"] = owner
        self._copier: Copier | None = None
        self._look_at = 0.0
        self._ended_at = 0.0
        self._code: int | None = None
        self.took_over = False

    def tick(self) -> list[str]:
        """Look, and do what is due. Return who was just found to be gone before its time:
        launcher, guardian or owner."""
        now = time.monotonic()
        if self._launch is None or now < self._look_at:
            return []
        self._look_at = now + LOOK_S
        lost = [] if (self._dir / files.EXIT_FILE).exists() else self._look()
        if self.took_over:
            self._killing.tick()
            self._see_end(now)
        return lost

    def _look(self) -> list[str]:
        others = self._others.items()
        lost = [who for who, facts in others if not is_alive(facts, who, f"{who}_start")]
        for who in lost:
            del self._others[who]
        if not self.took_over and not is_alive(self._launch, "pid", "start"):
            self.took_over = True
            if self._sources:
                self._copier = Copier(self._dir, self._sources)
            lost.append("launcher")
        return lost

    def finish(self) -> None:
        """Read what the job wrote last."""
        if self._copier is not None:
            self._copier.finish()
        self._killing.finish()

    def _see_end(self, now: float) -> None:
        if (self._dir / files.EXIT_FILE).exists() or job_pid(self._dir) is not None:
            return
        if self._code is None:
            self._code = last_seen(self._dir)
        self._ended_at = self._ended_at or now
        if now - self._ended_at >= REAP_S:
            error = UNKNOWN if self._code is None else ""
            write_exit(self._dir, self._code, error=error)
