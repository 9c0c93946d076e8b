"""``pardbg run`` as a shell or a batch system would run it: with pipes, or at a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from pardbg.hub.run.runs import list_runs
from pardbg.hub.run.start import RunHandle
from tests.processes import end_tree, rank_env, wait_until

PARDBG = [sys.executable, "-m", "pardbg.cli"]


def run_argv(session: Path, code: str, *words: str) -> list[str]:
    return [*PARDBG, "run", "-o", str(session), "--", sys.executable, "-c", code, *words]


@contextmanager
def owned(argv: list[str], **more: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, with pipes; ended, with all below it, at the end."""
    pipe = subprocess.PIPE
    process: subprocess.Popen[bytes] = subprocess.Popen(
        argv, env=rank_env(), stdin=more.pop("stdin", pipe), stdout=pipe, stderr=pipe,  # type: ignore[call-overload]
        start_new_session=True, **more,
    )  # fmt: skip
    try:
        yield process
    finally:
        end_tree(process.pid)
        for file in (process.stdin, process.stdout, process.stderr):
            if file is not None:
                file.close()
        process.wait()


def handle_of(session: Path) -> RunHandle:
    """The live run that records there."""
    found: list[Path] = []

    def look() -> bool:
        found[:] = [run.path for run in list_runs() if run.session == session]
        return bool(found) and RunHandle(found[0]).job_alive()

    wait_until(look, 20, "the run")
    return RunHandle(found[0])


def children(handle: RunHandle) -> dict[str, psutil.Process]:
    """Keeper, guardian, launcher, hub and job of a run."""
    from pardbg.hub.run.run_files import read_hub, read_job, read_launch

    launch, job, hub = (read(handle.run_dir) for read in (read_launch, read_job, read_hub))
    assert launch and launch.launcher and launch.guardian and launch.keeper and job and hub
    processes = {"keeper": launch.keeper, "guardian": launch.guardian, "launcher": launch.launcher,
                 "job": job, "hub": hub}  # fmt: skip
    return {name: psutil.Process(one.pid) for name, one in processes.items()}


def starting(run: psutil.Process) -> dict[str, psutil.Process]:
    """The processes of `pardbg run` that are there already, while none has been killed."""
    found = {"run": run}
    try:
        above = run
        for name in ("keeper", "guardian", "launcher"):
            if not (below := above.children()):
                return found
            found[name] = above = below[0]
        hubs = [p for p in above.children() if "hub.__main__" in " ".join(p.cmdline())]
        if hubs:
            found["hub"] = hubs[0]
    except psutil.Error:
        pass
    return found


class Terminal:
    """A program at a terminal of its own, as a person would have it."""

    def __init__(self, argv: list[str]) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            # Else the kernel drops what a program has printed since Ctrl-C, without pardbg, too.
            settings = termios.tcgetattr(0)
            settings[3] |= termios.NOFLSH
            termios.tcsetattr(0, termios.TCSANOW, settings)
            os.execve(argv[0], argv, rank_env())
        self.shown = b""
        self.status: int | None = None

    def until(self, text: bytes, timeout_s: float = 30) -> bytes:
        """All that was shown, as soon as ``text`` is in it."""
        deadline = time.monotonic() + timeout_s
        while text not in self.shown:
            if not self._read(0.1) or time.monotonic() > deadline:
                raise AssertionError(f"{text!r} was not shown: {self.shown!r}")
        return self.shown

    def _read(self, timeout_s: float) -> bool:
        if select.select([self.master], [], [], timeout_s)[0]:
            try:
                data = os.read(self.master, 4096)
            except OSError:
                return False
            self.shown += data
            return bool(data)
        return True

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def end(self) -> int:
        """Read to the end; the exit code as a shell has it."""
        while self._read(0.1):
            pass
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.status = code if code >= 0 else 128 - code
        return self.status

    def close(self) -> None:
        if self.status is None:
            end_tree(self.pid)  # reaped by it, too
        os.close(self.master)


@contextmanager
def terminal(argv: list[str]) -> Iterator[Terminal]:
    made = Terminal(argv)
    try:
        yield made
    finally:
        made.close()
