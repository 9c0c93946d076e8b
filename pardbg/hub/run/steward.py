"""Work of launcher, guardian and keeper, beside the job, for the process that started the run."""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from pardbg.hub.run import jobs, signals
from pardbg.hub.run.flow import Flow, Route
from pardbg.hub.run.terminal import TerminalModes
from pardbg.terminals import any_closed


@dataclass(slots=True)
class Stdio:
    """The owner's descriptors: the job's streams, its output's routes, the pipe of signals."""

    stdin: int
    stdout: int
    stderr: int
    routes: list[Route]
    charge: int
    heard_r: int
    heard: int
    terminal: bool = False
    """Whether stdin becomes the job's controlling terminal."""

    @classmethod
    def of(cls, words: str, terminal: bool) -> Stdio:
        """Parse the argument that ``Streams.for_launcher`` makes."""
        stdin, out, err, *fds, charge, heard_r, heard = map(int, words.split(","))
        routes = [Route(*fds[:3]), Route(*fds[3:])]
        return cls(stdin, out, err, routes, charge, heard_r, heard, terminal)

    def close_job_ends(self) -> None:
        """Close the job's ends, which the job has by now."""
        for fd in (self.stdin, self.stdout, self.stderr):
            os.close(fd)


class Owner:
    """Process that started the run, watched by a pipe whose other end it holds."""

    def __init__(self, alive_fd: int) -> None:
        self._poller = select.poll()
        self._poller.register(alive_fd, 0)
        self._gone = False

    @property
    def gone(self) -> bool:
        self._gone = self._gone or bool(self._poller.poll(0))
        return self._gone


class Steward:
    """Work of launcher, guardian and keeper for a job with an owner (``pardbg run``): carrying its
    output and, once the owner is gone, passing on signals and the hang-up of its terminal. Each has
    a Steward; the guardian's works when the launcher is dead, the keeper's when both are. ``turn``
    is called again and again.
    """

    def __init__(self, stdio: Stdio, owner: Owner, members: bytes) -> None:
        self._owner, self._heard = owner, stdio.heard_r
        self.members = members
        """Processes that are left in the owner's process group: see ``signals``."""
        self.flow = Flow(stdio.routes, stdio.charge)
        self._modes = TerminalModes() if stdio.terminal else None
        throughs = [route.through for route in stdio.routes]
        self._terminals = [fd for fd in throughs if os.isatty(fd)]

    def turn(self, run_dir: Path) -> None:
        """Do the steps that are due."""
        self.flow.carry(run_dir)
        if self._owner.gone:
            self.restore()
            if reports := signals.read_reports(self._heard):
                time.sleep(signals.REPORT_S)
                reports |= signals.read_reports(self._heard)
                for number in signals.sent_to_group(reports, self.members):
                    jobs.send(run_dir, number, group=True)
            self._look_for_hang_up(run_dir)

    def restore(self) -> None:
        """Restore the terminal of an owner that was killed before it could."""
        if self._modes is not None and self._owner.gone:
            self._modes.restore()

    def linger(self, run_dir: Path) -> None:
        """Carry output after the job's end while a process that it left behind may write."""
        while not self.flow.ended:
            self.flow.carry(run_dir)
            time.sleep(0.05)

    def _look_for_hang_up(self, run_dir: Path) -> None:
        """Send SIGHUP if the terminal was closed: the shell does not know an orphaned job."""
        if any_closed(self._terminals):
            self._terminals = []
            jobs.send(run_dir, signal.SIGHUP, group=True)
