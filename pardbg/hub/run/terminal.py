"""What the owner of a run gives the job to read and to write: what it has itself.

A stream that is a terminal here is one for the job, too, with the same settings and size: it draws
its progress bars, ``input()`` and ``breakpoint()`` work. The job's terminals are pseudo-terminals,
so that what goes through them can be recorded. Their output is not translated: that is done once,
by the terminal that shows it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pardbg.hub.run import config as files
from pardbg.hub.run.output import Pump, Stream, pipes

STDIN, STDOUT, STDERR = 0, 1, 2
POLL_S: Final = 0.05


@dataclass(slots=True)
class Streams:
    """The job's three streams: its ends, until the launcher has them, and ours."""

    stdin: int
    """The job's: ours as it is, or a terminal."""
    ends: tuple[int, int]
    """The job's stdout and stderr."""
    ours: list[Stream]
    terminal: bool = False
    """stdin and stdout are one terminal, and the job's controlling one."""
    heard: tuple[int, int] = field(default_factory=os.pipe)
    """A pipe by which launcher and hub tell what signals they heard."""

    def for_launcher(self) -> tuple[list[str], tuple[int, ...]]:
        """Its arguments, and the descriptors that they name."""
        fds = (self.stdin, *self.ends, self.heard[1])
        words = ["--stdio", ",".join(map(str, fds))]
        return [*words, "--terminal"] if self.terminal else words, fds

    def given(self) -> None:
        """The launcher has them: the job's ends are its own now."""
        for fd in (self.stdin, *self.ends, self.heard[1]):
            os.close(fd)

    @contextmanager
    def passed_through(self, run_dir: Path, out: int = STDOUT) -> Iterator[None]:
        """While the job runs: its output goes to ``out`` and our stderr, what is typed to it."""
        through = dict(zip((files.OUT_FILE, files.ERR_FILE), (out, STDERR), strict=True))
        streams = [Stream(one.source, one.file, through[one.file]) for one in self.ours]
        sys.stdout.flush()
        pump = Pump(run_dir, streams)
        with contextlib.ExitStack() as stack:
            if self.terminal:
                stack.enter_context(_typed([os.dup(one.source) for one in self.ours]))
            yield
            pump.finish()


def own_streams() -> Streams:
    """Streams for a job of ours, each of the kind that we have."""
    ours, ends = pipes()
    terminals = [os.isatty(fd) for fd in (STDIN, STDOUT, STDERR)]
    both = terminals[STDIN] and terminals[STDOUT]
    for number, fd in enumerate((STDOUT, STDERR)):
        if terminals[fd]:
            os.close(ours[number].source)
            os.close(ends[number])
            master, slave = _terminal_like(fd)
            ours[number] = Stream(master, ours[number].file)
            ends = (slave, ends[1]) if fd == STDOUT else (ends[0], slave)
    return Streams(os.dup(ends[0]) if both else _own_stdin(), ends, ours, both)


def _own_stdin() -> int:
    try:
        return os.dup(STDIN)
    except OSError:  # closed
        return os.open(os.devnull, os.O_RDONLY)


def _terminal_like(fd: int) -> tuple[int, int]:
    """(our side, the job's side)"""
    master, slave = pty.openpty()
    settings = termios.tcgetattr(fd)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(slave, termios.TCSANOW, settings)
    _copy_size(fd, master)
    return master, slave


def _copy_size(source: int, target: int) -> None:
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)


@contextmanager
def _typed(terminals: list[int]) -> Iterator[None]:
    """What is typed goes to the first of the job's terminals, key by key: that one decides what
    Ctrl-C is. All of them have the size that ours has."""

    def resize(*_: object) -> None:
        for terminal in terminals:
            _copy_size(STDIN, terminal)

    before = termios.tcgetattr(STDIN)
    resized = signal.signal(signal.SIGWINCH, resize)
    over = threading.Event()
    thread = threading.Thread(target=_type, args=(terminals[0], over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGWINCH, resized)
        if _in_front():
            termios.tcsetattr(STDIN, termios.TCSADRAIN, before)
        for terminal in terminals:
            os.close(terminal)


def _type(master: int, over: threading.Event) -> None:
    raw = False
    while not over.is_set():
        if not _in_front():  # put in the background: the shell has the terminal
            raw = False
            over.wait(POLL_S)
            continue
        if not raw:
            _key_by_key()
            raw = True
        if select.select([STDIN], [], [], POLL_S)[0] and _in_front():
            try:
                data = os.read(STDIN, 4096)
                os.write(master, data)
            except OSError:
                return
            if not data:
                return


def _in_front() -> bool:
    try:
        return os.tcgetpgrp(STDIN) == os.getpgrp()
    except OSError:
        return False


def _key_by_key() -> None:
    """Nothing is echoed, edited or made a signal of here; output stays translated."""
    settings = termios.tcgetattr(STDIN)
    settings[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR | termios.IXON | termios.ISTRIP)
    settings[3] &= ~(termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN)
    settings[6][termios.VMIN], settings[6][termios.VTIME] = 1, 0
    termios.tcsetattr(STDIN, termios.TCSADRAIN, settings)
