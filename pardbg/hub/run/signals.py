"""Signals to a run: the job gets the signals that it would get without pardbg.

``pardbg run``, the owner, stands where the job would, so it passes signals on. A batch system may
signal one process, a process group, or all processes that it finds. So launcher, guardian and hub
catch signals as well and report them to the owner: launcher and guardian are in the owner's process
group, keeper and hub are not, and the job has a group of its own.

| received by | sent to | the job gets |
|---|---|---|
| owner | one process | it, in its first process |
| owner, launcher | the group | it, in its whole group |
| owner, launcher, hub | all processes | nothing: it has it already |
| launcher, guardian (if alive); the owner is gone | the group | it, in its whole group |
| launcher, guardian, keeper or hub alone | one of ours | nothing |
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

LAUNCHER, GUARDIAN, KEEPER, HUB = b"l", b"g", b"k", b"h"
REPORT_S: Final = 0.03
"""Time to wait for the reports of the other processes."""
_NOT_PASSED: Final = {
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGTTIN, signal.SIGTTOU,
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL,
    signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS,
}  # fmt: skip


def passed_on() -> list[int]:
    """Return signals to catch and pass on: not those ignored from the start (``nohup``)."""
    every = [n for n in signal.valid_signals() if n not in _NOT_PASSED and n < signal.SIGRTMIN]
    return [n for n in every if signal.getsignal(n) not in (signal.SIG_IGN, None)]


def report(who: bytes, report_fd: int, also: Callable[[int], None] = lambda number: None) -> None:
    """Survive signals and report each to the owner (``report_fd`` < 0: there is no owner).

    A handler, not SIG_IGN: a started program would inherit that.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if report_fd >= 0:
            with contextlib.suppress(OSError):
                os.write(report_fd, who + bytes([number]))
        also(number)

    for number in passed_on():
        signal.signal(number, handle)


class Passing:
    """The owner's signals, as a context: caught from ``catch`` on, which precedes the job, and
    passed to the job in ``deliver``."""

    def __init__(self, report_fd: int) -> None:
        self._report_fd = report_fd
        """Pipe with reports of launcher and hub; < 0: there is none."""
        self._got: list[int] = []
        self._before: dict[int, object] = {}
        self._pipe = WakePipe()
        self.wait = self._pipe.wait
        """Waits for a signal, for a time (s) at most."""
        self.on_resize: Callable[[], None] | None = None
        """Resizes the job's terminal before SIGWINCH is passed on: programs then read its size."""

    def catch(self) -> None:
        """Catch signals from now on; call once."""
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
        """Raise the signals since ``catch`` once more, with their own handlers: there is no job."""
        self.__exit__()
        for number in dict.fromkeys(self._got):
            os.kill(os.getpid(), number)

    def deliver(self, send: Callable[[int, bool], None]) -> None:
        """Pass on the signals since the last call: ``send(signal, to the job's whole group)``."""
        if not self._got:
            return
        time.sleep(REPORT_S)
        numbers, self._got = list(dict.fromkeys(self._got)), []
        if signal.SIGWINCH in numbers and self.on_resize is not None:
            self.on_resize()
        reports = read_reports(self._report_fd)
        for number in numbers:
            group, everybody = (who + bytes([number]) in reports for who in (LAUNCHER, HUB))
            if not (group and everybody):
                send(number, group)


def read_reports(fd: int) -> set[bytes]:
    """Return the reports since the last call, two bytes each: process, signal."""
    if fd < 0 or not select.select([fd], [], [], 0)[0]:
        return set()
    data = os.read(fd, 4096)
    return {data[i : i + 2] for i in range(0, len(data), 2)}


def sent_to_group(reports: set[bytes], members: bytes) -> list[int]:
    """Return signals that were sent to the group of an owner that is gone, and so to each of its
    ``members`` that live: launcher, guardian."""
    numbers = sorted({report[1] for report in reports}) if members else []
    group = [n for n in numbers if all(bytes([who, n]) in reports for who in members)]
    return [n for n in group if HUB + bytes([n]) not in reports]
