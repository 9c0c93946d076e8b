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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from pardbg.hub.run.flow import PIPE_BYTES, Flow, Route, spools
from pardbg.hub.run.output import write_all
from pardbg.hub.run.signals import Passing

STDIN, STDOUT, STDERR = 0, 1, 2
POLL_S: Final = 0.05


@dataclass(slots=True)
class Streams:
    """The job's three streams: its ends, until the launcher has them, and ours."""

    stdin: int
    """The job's: ours as it is, or a terminal."""
    ends: tuple[int, int]
    """The job's stdout and stderr."""
    routes: list[Route]
    charge: int
    terminal: bool = False
    """stdin and stdout are one terminal, and the job's controlling one."""
    heard: tuple[int, int] = field(default_factory=os.pipe)
    """A pipe by which launcher, guardian and hub tell what signals they heard."""
    signals: Passing = field(init=False)
    flow: Flow = field(init=False)

    def __post_init__(self) -> None:
        self.signals = Passing(self.heard[0])
        self.flow = Flow(self.routes, self.charge)

    def for_launcher(self) -> tuple[list[str], tuple[int, ...]]:
        """Return its arguments, and the descriptors that they name: see ``Stdio.of``."""
        routes = [fd for one in self.routes for fd in (one.source, one.spool, one.through)]
        fds = (self.stdin, *self.ends, *routes, self.charge, *self.heard)
        words = ["--stdio", ",".join(map(str, fds))]
        return [*words, "--terminal"] if self.terminal else words, fds

    def given(self) -> None:
        """The launcher has them: the job's ends are its own now."""
        for fd in (self.stdin, *self.ends, self.heard[1]):
            os.close(fd)

    @contextmanager
    def typed(self) -> Iterator[Callable[[], None]]:
        """While the job runs: passes what is typed. Gives what suspends us."""
        let_go: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        with contextlib.ExitStack() as stack:
            if self.terminal:
                typing = Typing([os.dup(one.source) for one in self.routes], self.signals)
                let_go = stack.enter_context(typing).let_go
            yield lambda: stand_still(let_go())


def own_streams(out: int = STDOUT) -> Streams:
    """Streams for a job of ours, each of the kind that we have; ``out`` takes the job's stdout.
    Where stdout and stderr are one, all of it is recorded as stdout. Raises OSError."""
    sys.stdout.flush()
    sources, ends = [-1, -1], [-1, -1]
    for number, fd in enumerate((STDOUT, STDERR)):
        sources[number], ends[number] = _terminal_like(fd) if os.isatty(fd) else _pipe()
    if _same(STDOUT, STDERR):  # `2>&1`: one way, or they would overtake each other
        os.close(ends[1])
        ends[1] = os.dup(ends[0])
    *files, charge = spools()
    through = (os.dup(out), os.dup(STDERR))
    routes = [Route(*fds) for fds in zip(sources, files, through, strict=True)]
    both = os.isatty(STDIN) and os.isatty(STDOUT)
    stdin = os.dup(ends[0]) if both else _own_stdin()
    return Streams(stdin, (ends[0], ends[1]), routes, charge, both)


def _same(one: int, other: int) -> bool:
    """Return whether what is written to both comes to the same place."""
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:  # closed
        return False


def _pipe() -> tuple[int, int]:
    """(our end, the job's end)"""
    source, end = os.pipe()
    with contextlib.suppress(OSError):
        fcntl.fcntl(source, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return source, end


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


class Typing:
    """Passes keys to the first of the job's terminals, one by one: that one decides what Ctrl-C is.
    All of them have the size that ours has."""

    def __init__(self, terminals: list[int], signals: Passing) -> None:
        """``signals``: SIGWINCH is passed on by the size of the job's terminal."""
        self._terminals = terminals
        self._signals = signals
        self._before = termios.tcgetattr(STDIN)
        self._over = threading.Event()
        self._standing = False
        self._raw = False
        self._thread = threading.Thread(target=self._type, daemon=True)

    def __enter__(self) -> Typing:
        self._signals.on_resize = self._resize
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._signals.on_resize = None
        self._give_back()
        for terminal in self._terminals:
            os.close(terminal)

    @contextmanager
    def let_go(self) -> Iterator[None]:
        """Restore the terminal for the shell while we stand still."""
        self._standing = True
        self._give_back()
        yield
        self._standing = False

    def _give_back(self) -> None:
        self._raw = False
        if _in_front():
            termios.tcsetattr(STDIN, termios.TCSADRAIN, self._before)

    def _resize(self) -> None:
        for terminal in self._terminals:
            _copy_size(STDIN, terminal)

    def _type(self) -> None:
        while not self._over.is_set():
            if self._standing or not _in_front():  # in the background the shell has the terminal
                self._raw = False
                self._over.wait(POLL_S)
                continue
            if not self._raw:
                termios.tcsetattr(STDIN, termios.TCSADRAIN, _key_by_key(self._before))
                self._raw = True
            if select.select([STDIN], [], [], POLL_S)[0] and _in_front() and not self._pass_keys():
                return

    def _pass_keys(self) -> bool:
        """False at the end of what can be typed or read."""
        try:
            data = os.read(STDIN, 4096)
            before, ctrl_z, after = data.partition(self._suspends())
            alive = write_all(self._terminals[0], before if ctrl_z else data)
            if ctrl_z:
                os.killpg(os.getpgrp(), signal.SIGTSTP)
                alive = write_all(self._terminals[0], after)
        except OSError:
            return False
        return bool(data) and alive

    def _suspends(self) -> bytes:
        """The key that suspends the job, where the kernel would not do it: it takes a job that has
        its terminal's session to itself for one that nobody could wake. Else no key at all."""
        settings = termios.tcgetattr(self._terminals[0])
        key: bytes = settings[6][termios.VSUSP]
        alone = os.getsid(front := os.tcgetpgrp(self._terminals[0])) == front
        return key if alone and settings[3] & termios.ISIG and key != b"\0" else b"no such key"


class TerminalModes:
    """Our terminal's settings, for who survives an owner that could not set them back."""

    def __init__(self) -> None:
        self._fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        self._before = termios.tcgetattr(self._fd)

    def restore(self) -> None:
        """Set back what is still as ``Typing`` set it."""
        with contextlib.suppress(termios.error):
            if termios.tcgetattr(self._fd) == _key_by_key(self._before):
                signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # in the background by now
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)


def stand_still(let_go: AbstractContextManager[None]) -> None:
    """Be suspended as Ctrl-Z does it; returns when somebody lets us go on."""
    with let_go:
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, before)


def _in_front() -> bool:
    try:
        return os.tcgetpgrp(STDIN) == os.getpgrp()
    except OSError:
        return False


def _key_by_key(settings: list[Any]) -> list[Any]:
    """Nothing is echoed, edited or made a signal of here; output stays translated."""
    made = [*settings[:6], list(settings[6])]
    made[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR | termios.IXON | termios.ISTRIP)
    made[3] &= ~(termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN)
    made[6][termios.VMIN], made[6][termios.VTIME] = 1, 0
    return made
