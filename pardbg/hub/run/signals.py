"""Signals that somebody sends to a run: the job gets what it would have got without pardbg.

``pardbg run``, the owner, stands where the job would: what is sent to it goes on to the job. A
batch system may send to one process, to a process group or to all that it finds. So launcher,
guardian and hub catch everything as well, and tell what they heard: launcher and guardian are in
the owner's process group, the hub is not, and the job has a group of its own.

| heard by | sent to | the job gets |
|---|---|---|
| owner | one process | it, in its first process |
| owner, launcher | the group | it, in its whole group |
| owner, launcher, hub | all processes | nothing: it has it already |
| launcher, guardian; the owner is gone | the group | it, in its whole group |
| launcher, guardian or hub alone | one of ours | nothing |
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from pardbg_agent.sender.wake import WakePipe

LAUNCHER, GUARDIAN, HUB = b"l", b"g", b"h"
HEAR_S: Final = 0.03
"""Time to wait for what the others heard."""
_NOT_PASSED: Final = {
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGTTIN, signal.SIGTTOU,
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL,
    signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS,
}  # fmt: skip


def passed_on() -> list[int]:
    """Signals that are handled here, less those that were ignored from the start (``nohup``)."""
    every = [n for n in signal.valid_signals() if n not in _NOT_PASSED and n < signal.SIGRTMIN]
    return [n for n in every if signal.getsignal(n) not in (signal.SIG_IGN, None)]


def tell(who: bytes, heard_fd: int, also: Callable[[int], None] = lambda number: None) -> None:
    """Die of nothing; say to the owner what was heard (``heard_fd`` < 0: there is none).

    A handler, not SIG_IGN: a program that we start must not inherit it.
    """

    def note(number: int, frame: FrameType | None) -> None:
        if heard_fd >= 0:
            with contextlib.suppress(OSError):
                os.write(heard_fd, who + bytes([number]))
        also(number)

    for number in passed_on():
        signal.signal(number, note)


class Passing:
    """The owner's side, as a context: catches signals from before there is a job (``catch``), and
    gives them to it in ``deliver``."""

    def __init__(self, heard_fd: int) -> None:
        self._heard_fd = heard_fd
        """What launcher and hub tell; < 0: nobody tells."""
        self._got: list[int] = []
        self._before: dict[int, object] = {}
        self._pipe = WakePipe()
        self.wait = self._pipe.wait
        """Until a signal comes, or the time (s) is up."""
        self.on_resize: Callable[[], None] | None = None
        """Done first where the job's terminal has the size of ours: most who get SIGWINCH look."""

    def catch(self) -> None:
        """From now on; once."""
        for number in passed_on():
            handler = signal.signal(number, lambda number, frame: self._got.append(number))
            self._before[number] = handler
        signal.set_wakeup_fd(self._pipe.write_fd, warn_on_full_buffer=False)

    def __enter__(self) -> Passing:
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._pipe.close()

    def again(self) -> None:
        """Get what has come since ``catch`` once more, as without us: there is no job for it."""
        self.__exit__()
        for number in dict.fromkeys(self._got):
            os.kill(os.getpid(), number)

    def deliver(self, send: Callable[[int, bool], None]) -> None:
        """Pass on what has come since: ``send(signal, to the job's whole group)``."""
        if not self._got:
            return
        time.sleep(HEAR_S)
        numbers, self._got = list(dict.fromkeys(self._got)), []
        if signal.SIGWINCH in numbers and self.on_resize is not None:
            self.on_resize()
        told = self._heard()
        for number in numbers:
            group, everybody = (who + bytes([number]) in told for who in (LAUNCHER, HUB))
            if not (group and everybody):
                send(number, group)

    def _heard(self) -> set[bytes]:
        return heard(self._heard_fd)


def heard(fd: int) -> set[bytes]:
    """Return what was told since the last call: (who, signal) each."""
    if fd < 0 or not select.select([fd], [], [], 0)[0]:
        return set()
    data = os.read(fd, 4096)
    return {data[i : i + 2] for i in range(0, len(data), 2)}


def sent_to_group(told: set[bytes], *, launcher: bool) -> list[int]:
    """Return what the owner's group was sent, where the owner is gone. Without a ``launcher`` the
    guardian is all that is left of it."""
    members = (LAUNCHER, GUARDIAN) if launcher else (GUARDIAN,)
    numbers = sorted({one[1] for one in told})
    group = [n for n in numbers if all(who + bytes([n]) in told for who in members)]
    return [n for n in group if HUB + bytes([n]) not in told]
