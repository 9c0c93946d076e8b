"""Guardian and keeper: the launcher's parent and that one's parent, which end with the run.

The nearest one that lives becomes the parent of a job whose launcher was killed, so the exit code
stays known, and then does the launcher's work for the owner's streams. The keeper also survives a
SIGKILL to the owner's process group, or to every command line with pardbg's name. A run that loses
a process before it has a job leaves nothing behind: all three exist before the run's directories.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from pardbg.hub.ranks import processes
from pardbg.hub.removal import remove_empty, remove_unstarted
from pardbg.hub.run import config as files
from pardbg.hub.run import jobs, signals
from pardbg.hub.run.own_process import argv as own_process
from pardbg.hub.run.run_files import has_ended, read_hub, read_job, read_launch, read_recorded
from pardbg.hub.run.steward import Owner, Stdio, Steward

LOOK_S: Final = 0.2
READY: Final = b"+"
"""Message of the launcher to the owner: the directories can be made."""
MAX_RESTARTS: Final = 5
OWNER_S: Final = 0.5
END_S: Final = 20.0
"""Maximum time for the hub to write the rest of the recording after the job's end."""


def start_hub(
    run_dir: Path, *, sources: Collection[int] = (), heard: int | None = None
) -> subprocess.Popen[bytes]:
    """Start the hub. ``sources``: descriptors of the output of a job without an owner; ``heard``:
    of the pipe that reports received signals. Raises OSError, RuntimeError."""
    words = ["--sources", *map(str, sources)] if sources else []
    words += ["--heard", str(heard)] if heard is not None else []
    with open(run_dir / files.HUB_LOG, "ab") as log:
        return subprocess.Popen(
            own_process("pardbg.hub.__main__", str(run_dir), *words),
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # numpy's, unused: address space
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            pass_fds=(*sources, *([] if heard is None else [heard])), start_new_session=True,
        )  # fmt: skip


def wait_for_directory(alive_fd: int) -> Path | None:
    """Wait until the owner has made the run's directory and return it; None: the owner is gone."""
    text = b""
    while not text.endswith(b"\n"):
        data = os.read(alive_fd, 4096)
        if not data:
            return None
        text += data
    return Path(os.fsdecode(text[:-1]))


class Guardian:
    """Guardian or keeper after the fork: ``wait`` returns at the end of the run."""

    def __init__(
        self,
        run: str,
        roots: list[Path],
        stdio: Stdio | None,
        sources: list[int],
        owner: Owner,
        *,
        keeper: bool,
    ) -> None:
        """``roots``: possible parents of the run's directory. ``sources``: see ``Launcher``."""
        self._run, self._roots, self._owner, self._sources = run, roots, owner, sources
        self._line = processes.command_line(os.getpid())
        self._steward: Steward | None = None
        self._hub: int | None = None
        """Pid of the hub that this process started; None: the launcher's hub is in use."""
        self._restarts = 0
        self._heard = None if stdio is None else stdio.heard
        if stdio is not None:
            stdio.close_job_ends()
            self._steward = Steward(stdio, owner, b"" if keeper else signals.GUARDIAN)
        if keeper:
            signals.report(signals.KEEPER, -1 if self._heard is None else self._heard)
            with contextlib.suppress(PermissionError):  # it leads a session
                os.setsid()
            set_title(f"{run}: keeps the output and exit code of this job")

    @property
    def _dir(self) -> Path:
        places = [root / self._run for root in self._roots]
        return next((path for path in places if path.is_dir()), places[0])

    def wait(self, child: int) -> None:
        """Return after the end of ``child`` (launcher or guardian) and of the launcher; if the job
        outlived them, record its end first."""
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        ended: dict[int, int] = {}
        while not ((alone := child in ended and self._alone()) and self._look_after(ended)):
            if not alone and self._steward is not None:
                self._steward.flow.close_lost()
            self._reap(ended) or signal.sigtimedwait([signal.SIGCHLD], LOOK_S)
        if self._steward is not None and read_job(self._dir) is not None:
            self._steward.linger(self._dir)
        deadline = time.monotonic() + END_S
        while self._hub is not None and self._hub not in ended and time.monotonic() < deadline:
            self._reap(ended) or signal.sigtimedwait([signal.SIGCHLD], LOOK_S)

    def _alone(self) -> bool:
        """Return whether the launcher is gone, too."""
        launch = read_launch(self._dir)
        if launch is None or launch.launcher is None:
            return not self._beginning()
        return not launch.launcher.alive

    def _reap(self, ended: dict[int, int]) -> bool:
        found = False
        try:
            while (done := os.waitpid(-1, os.WNOHANG))[0]:
                ended[done[0]], found = done[1], True
        except ChildProcessError:
            pass
        return found

    def _look_after(self, ended: dict[int, int]) -> bool:
        """Do the launcher's work after its end; return True when none is left."""
        if has_ended(self._dir):
            self._forget_unstarted()
            return True
        job = read_job(self._dir)
        if job is None:
            if self._beginning():
                return False
            kill_children(self._run)
            self._forget_unstarted()
            return True
        if self._steward is not None:
            self._steward.turn(self._dir)
        self._keep_hub(ended)
        if job.pid in ended:
            if self._steward is not None:
                self._steward.flow.catch_up()
            untold = self._steward is not None and self._owner.gone
            code = os.waitstatus_to_exitcode(ended[job.pid])
            jobs.write_exit(self._dir, code, self._restarts, untold=untold)
        return job.pid in ended

    def _keep_hub(self, ended: Mapping[int, int]) -> None:
        """Start the hub again if it was killed, with the launcher or later."""
        if self._restarts >= MAX_RESTARTS or not self._hub_was_killed(ended):
            return
        self._restarts += 1
        with contextlib.suppress(OSError, RuntimeError):  # no process to be had
            self._hub = start_hub(self._dir, sources=self._sources, heard=self._heard).pid

    def _hub_was_killed(self, ended: Mapping[int, int]) -> bool:
        if self._hub is not None:
            return bool(ended.get(self._hub))
        hub = read_hub(self._dir)
        return hub is not None and not hub.alive and read_recorded(self._dir) is None

    def _beginning(self) -> bool:
        """Return whether a child is the launcher, or forked by it and about to become the job."""
        found = processes.children(os.getpid())
        return any(processes.command_line(pid) == self._line for pid in found)

    def _forget_unstarted(self) -> None:
        """Remove a run without a job, unless its owner lives to do so: one that is killed with the
        launcher may be there a moment longer."""
        if read_job(self._dir) is not None:
            return
        deadline = time.monotonic() + OWNER_S
        while not self._owner.gone and time.monotonic() < deadline:
            time.sleep(0.02)
        if self._owner.gone:
            with contextlib.suppress(files.ConfigError):
                remove_empty(Path(files.load(self._dir).session))
            remove_unstarted(self._run, self._roots, files.shm_root())


def kill_children(run: str) -> None:
    """Kill this process's children of a run without a job: hub, launcher or guardian."""
    for pid in processes.children(os.getpid()):
        if run.encode() in processes.command_line(pid):
            os.kill(pid, signal.SIGKILL)


def set_title(title: str) -> None:
    """Replace this process's command line, as ``ps`` and ``pkill -f`` see it, as far as it fits."""
    fields = processes.stat_fields(os.getpid())
    with contextlib.suppress(IndexError, ValueError):
        start, room = int(fields[45]), int(fields[46]) - int(fields[45])
        if start > 0 and room > 0:
            ctypes.memset(start, 0, room)
            ctypes.memmove(start, title.encode()[: room - 1], min(len(title.encode()), room - 1))
