"""What a job of an owner (``pardbg run``) needs beside its exit code: its output carried on and,
once the owner is gone, the signals and the hang-up that the owner would have passed on.

Launcher and guardian each have a ``Steward``: the guardian's works when the launcher is dead.
"""

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


@dataclass(slots=True)
class Stdio:
    """Descriptors that the owner gave: the job's streams, those to carry them by, and a pipe that
    tells which signals were heard."""

    stdin: int
    stdout: int
    stderr: int
    routes: list[Route]
    charge: int
    heard_r: int
    heard: int
    terminal: bool = False
    """stdin is to be the job's controlling terminal."""

    @classmethod
    def of(cls, words: str, terminal: bool) -> Stdio:
        """From ``Streams.for_launcher``."""
        stdin, out, err, *six, charge, heard_r, heard = map(int, words.split(","))
        routes = [Route(*six[:3]), Route(*six[3:])]
        return cls(stdin, out, err, routes, charge, heard_r, heard, terminal)

    def given(self) -> None:
        """The job has its streams."""
        for fd in (self.stdin, self.stdout, self.stderr):
            os.close(fd)


class Owner:
    """Whether who started the run is there, by a pipe of which it has the other end."""

    def __init__(self, alive_fd: int) -> None:
        self._poller = select.poll()
        self._poller.register(alive_fd, 0)
        self._gone = False

    @property
    def gone(self) -> bool:
        self._gone = self._gone or bool(self._poller.poll(0))
        return self._gone


class Steward:
    """One process's."""

    def __init__(self, stdio: Stdio, owner: Owner, *, launcher: bool) -> None:
        self._owner, self._heard = owner, stdio.heard_r
        self._launcher = launcher
        """Who we are; else the guardian."""
        self.flow = Flow(stdio.routes, stdio.charge)
        self._modes = TerminalModes() if stdio.terminal else None
        throughs = [route.through for route in stdio.routes]
        self._terminals = [fd for fd in throughs if os.isatty(fd)]

    def turn(self, run_dir: Path) -> None:
        """Do what is due."""
        self.flow.carry(run_dir)
        if self._owner.gone:
            self.restore()
            self._pass_signals(run_dir)
            self._look_for_hang_up(run_dir)

    def restore(self) -> None:
        """Give the owner's terminal back as it was: an owner that is gone could not."""
        if self._modes is not None and self._owner.gone:
            self._modes.restore()

    def linger(self, run_dir: Path) -> None:
        """After the job's end: a process that it left behind may still write."""
        while not self.flow.ended:
            self.flow.carry(run_dir)
            time.sleep(0.05)

    def _pass_signals(self, run_dir: Path) -> None:
        if told := signals.heard(self._heard):
            time.sleep(signals.HEAR_S)
            told |= signals.heard(self._heard)
            for number in signals.sent_to_group(told, launcher=self._launcher):
                jobs.send(run_dir, number, group=True)

    def _look_for_hang_up(self, run_dir: Path) -> None:
        """The user closed the terminal: the shell knows nothing of a job whose owner is gone."""
        poller = select.poll()
        for fd in self._terminals:
            poller.register(fd, 0)
        if any(event & select.POLLHUP for _, event in poller.poll(0)):
            self._terminals = []
            jobs.send(run_dir, signal.SIGHUP, group=True)
