"""The job's standard streams under an owner (``pardbg run``): of the same kind as the owner's own.

A stream that is a terminal here is one for the job, too, with the same settings and size, so
progress bars, ``input()`` and ``breakpoint()`` work. The job's terminals are pseudo-terminals whose
output can be recorded. They do not translate it: the terminal that shows it does, once.
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
    """The job's three streams: the job's ends, until the launcher has them, and the owner's."""

    stdin: int
    """The job's end: the owner's stdin, or a terminal."""
    ends: tuple[int, int]
    """The job's stdout and stderr."""
    routes: list[Route]
    charge: int
    terminal: bool = False
    """Whether stdin and stdout are one terminal, the job's controlling one."""
    heard: tuple[int, int] = field(default_factory=os.pipe)
    """Pipe by which launcher, guardian and hub report the signals that they receive."""
    signals: Passing = field(init=False)
    flow: Flow = field(init=False)

    def __post_init__(self) -> None:
        self.signals = Passing(self.heard[0])
        self.flow = Flow(self.routes, self.charge)

    def for_launcher(self) -> tuple[list[str], tuple[int, ...]]:
        """Return the launcher's arguments, and the descriptors in them: see ``Stdio.of``."""
        routes = [fd for r in self.routes for fd in (r.source, r.spool, r.through)]
        fds = (self.stdin, *self.ends, *routes, self.charge, *self.heard)
        words = ["--stdio", ",".join(map(str, fds))]
        return [*words, "--terminal"] if self.terminal else words, fds

    def close_job_ends(self) -> None:
        """Close the job's ends, which the launcher has by now."""
        for fd in (self.stdin, *self.ends, self.heard[1]):
            os.close(fd)

    @contextmanager
    def passing_keys(self) -> Iterator[Callable[[], None]]:
        """Pass keys to the job inside the context; yield a function that suspends the owner."""
        released: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        with contextlib.ExitStack() as stack:
            if self.terminal:
                keys = KeyPassing([os.dup(route.source) for route in self.routes], self.signals)
                released = stack.enter_context(keys).released
            yield lambda: suspend_self(released())


def own_streams(out: int = STDOUT) -> Streams:
    """Make streams for a job, each of the kind that the owner has; ``out`` takes the job's stdout.
    If stdout and stderr lead to one place, both are recorded as stdout. Raises OSError."""
    sys.stdout.flush()
    sources, ends = [-1, -1], [-1, -1]
    for number, fd in enumerate((STDOUT, STDERR)):
        sources[number], ends[number] = _terminal_like(fd) if os.isatty(fd) else _pipe()
    if _same(STDOUT, STDERR):  # `2>&1`: on two ways their lines would overtake each other
        os.close(ends[1])
        ends[1] = os.dup(ends[0])
    *files, charge = spools()
    through = (os.dup(out), os.dup(STDERR))
    routes = [Route(*fds) for fds in zip(sources, files, through, strict=True)]
    both = os.isatty(STDIN) and os.isatty(STDOUT)
    stdin = os.dup(ends[0]) if both else _own_stdin()
    return Streams(stdin, (ends[0], ends[1]), routes, charge, both)


def _same(fd: int, other: int) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.fstat(other))
    except OSError:  # closed
        return False


def _pipe() -> tuple[int, int]:
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
    """Make a terminal like ``fd``; return (owner's side, job's side)."""
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


class KeyPassing:
    """Thread that passes keys to the first of the job's terminals, one by one, so that terminal
    decides what Ctrl-C does. All of the job's terminals keep the size of the owner's."""

    def __init__(self, terminals: list[int], signals: Passing) -> None:
        """``signals``: gets the handler of SIGWINCH, which resizes the job's terminals."""
        self._terminals = terminals
        self._signals = signals
        self._before = termios.tcgetattr(STDIN)
        self._over = threading.Event()
        self._suspended = False
        self._raw = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> KeyPassing:
        self._signals.on_resize = self._resize
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._signals.on_resize = None
        self._restore()
        for terminal in self._terminals:
            os.close(terminal)

    @contextmanager
    def released(self) -> Iterator[None]:
        """Restore the terminal's settings for the shell while the owner is suspended."""
        self._suspended = True
        self._restore()
        yield
        self._suspended = False

    def _restore(self) -> None:
        self._raw = False
        if _in_foreground():
            termios.tcsetattr(STDIN, termios.TCSADRAIN, self._before)

    def _resize(self) -> None:
        for terminal in self._terminals:
            _copy_size(STDIN, terminal)

    def _run(self) -> None:
        while not self._over.is_set():
            if self._suspended or not _in_foreground():  # the shell has the terminal
                self._raw = False
                self._over.wait(POLL_S)
                continue
            if not self._raw:
                termios.tcsetattr(STDIN, termios.TCSADRAIN, _raw_settings(self._before))
                self._raw = True
            if (
                select.select([STDIN], [], [], POLL_S)[0]
                and _in_foreground()
                and not self._pass_keys()
            ):
                return

    def _pass_keys(self) -> bool:
        try:
            data = os.read(STDIN, 4096)
            before, ctrl_z, after = data.partition(self._suspend_key())
            alive = write_all(self._terminals[0], before if ctrl_z else data)
            if ctrl_z:
                os.killpg(os.getpgrp(), signal.SIGTSTP)
                alive = write_all(self._terminals[0], after)
        except OSError:
            return False
        return bool(data) and alive

    def _suspend_key(self) -> bytes:
        """Return the key that must suspend the job here; a text that is not a key if the kernel
        does it. The kernel does not suspend a job that has its terminal's session to itself: no
        shell could continue it."""
        settings = termios.tcgetattr(self._terminals[0])
        key: bytes = settings[6][termios.VSUSP]
        alone = os.getsid(front := os.tcgetpgrp(self._terminals[0])) == front
        return key if alone and settings[3] & termios.ISIG and key != b"\0" else b"no such key"


class TerminalModes:
    """The owner's terminal settings, restored by another process if the owner was killed."""

    def __init__(self) -> None:
        self._fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        self._before = termios.tcgetattr(self._fd)

    def restore(self) -> None:
        """Restore the settings unless they changed since ``KeyPassing`` set them."""
        with contextlib.suppress(termios.error):
            if termios.tcgetattr(self._fd) == _raw_settings(self._before):
                signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # in the background by now
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)


def suspend_self(released: AbstractContextManager[None]) -> None:
    """Suspend this process as Ctrl-Z does; return once it is continued."""
    with released:
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, before)


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(STDIN) == os.getpgrp()
    except OSError:
        return False


def _raw_settings(settings: list[Any]) -> list[Any]:
    """Return settings without echo, editing and signals; output stays translated."""
    raw = [*settings[:6], list(settings[6])]
    raw[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR | termios.IXON | termios.ISTRIP)
    raw[3] &= ~(termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN)
    raw[6][termios.VMIN], raw[6][termios.VTIME] = 1, 0
    return raw
