"""The launcher's parent: it waits, and becomes the parent of a job whose launcher was killed.

Only a parent learns how a process ended. Who started the run may have left by then.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from pardbg.hub.run import config as files
from pardbg.hub.run import jobs, signals


def stay_behind(run_dir: Path, fds: Iterable[int]) -> None:
    """Return in a new process, the launcher to be. This one keeps none of ``fds`` and waits."""
    jobs.adopt_orphans()
    signals.tell(signals.LAUNCHER, -1)
    launcher = os.fork()
    if launcher == 0:
        return
    for fd in fds:
        os.close(fd)
    try:
        _wait(run_dir, launcher)
    finally:
        os._exit(0)


def _wait(run_dir: Path, launcher: int) -> None:
    """Until the launcher has ended; if it left its job, until that has, and say how."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return
        ended[pid] = status
        if launcher not in ended:
            continue
        if (run_dir / files.EXIT_FILE).exists():
            return
        job = jobs.noted(run_dir)
        if job in ended:
            jobs.write_exit(run_dir, os.waitstatus_to_exitcode(ended[job]))
            return
