"""A job's output on its way to the streams of its owner (``pardbg run``).

Between the two lies a file in memory, the spool. The kernel moves the bytes: ``splice`` from the
job's pipe to the end of the spool, ``sendfile`` from the spool's position on to the owner's stream.
Each call also advances what it has moved (the pipe, the file's size, its position), and all of that
belongs to the descriptors, not to a process. So a carrier that is killed loses nothing and repeats
nothing. Launcher, guardian, keeper and owner share the descriptors; a lock, which the kernel
takes from the dead, says which of them carries.

The job waits for no reader until ``MAX_BEHIND`` bytes are in the spool; then it waits as it would
at a plain pipe: what is passed on is complete.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import stat
import struct
import termios
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pardbg.hub.run.output import READ_BYTES, Copier, write_all

MAX_BEHIND: Final = 64 << 20
"""Bytes that a slow reader may lag before the job waits for it."""
CHUNK: Final = 1 << 20
PIPE_BYTES: Final = 1 << 20
POLL_S: Final = 0.01
STACK_BYTES: Final = 256 << 10
"""Stack of a thread: the address space may be limited (``ulimit -v``)."""
QUIET_S: Final = 0.1
"""Time in which a terminal's last output may still be inside the kernel."""
CATCH_UP_S: Final = 1.0
LOST, ENDED = 1, 2
"""States of a route, in ``charge``: no reader is left; all output is passed on."""
_GONE: Final = select.POLLERR | select.POLLNVAL
_NO_SENDFILE: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclass(slots=True)
class Route:
    """Descriptors of one output stream, shared by all processes that may carry it."""

    source: int
    """The owner's end of the job's pipe or terminal; -1: closed."""
    spool: int
    through: int
    """The owner's stream."""


def spools() -> tuple[int, int, int]:
    """Return two spools and the ``charge`` of a flow. Raises OSError."""
    names = ("pardbg-stdout", "pardbg-stderr", "pardbg-charge")
    out, err, charge = (os.memfd_create(name, os.MFD_CLOEXEC) for name in names)
    os.pwrite(charge, bytes(2), 0)
    return out, err, charge


class Flow:
    """Both output streams, in each process that may carry them."""

    def __init__(self, routes: Sequence[Route], charge: int) -> None:
        self._routes = list(routes)
        self._charge = charge
        """File with a state per route; the process that has it locked carries."""
        self._copier: Copier | None = None

    def carry(self, run_dir: Path) -> bool:
        """Carry the streams unless another process does; return whether this one does. Raises
        RuntimeError where no thread can be started."""
        if self._copier is not None:
            return True
        self.close_lost()
        try:
            fcntl.lockf(self._charge, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        threading.stack_size(STACK_BYTES)
        states = os.pread(self._charge, 2, 0)
        for number, route in enumerate(self._routes):
            if not states[number]:
                _Lane(route, partial(self._say, number))
        self._copier = Copier(run_dir, [route.spool for route in self._routes], passing=True)
        return True

    def close_lost(self) -> None:
        """Close streams that another process found to have no reader: the job's writes then fail,
        as they would at a plain pipe."""
        for route, state in zip(self._routes, os.pread(self._charge, 2, 0), strict=True):
            if state and self._copier is None:
                _close(route)

    @property
    def ended(self) -> bool:
        """Return whether both streams are over: no process writes, or none reads any more."""
        return all(os.pread(self._charge, 2, 0))

    def written(self) -> list[int]:
        """Return the length of each stream so far, in bytes."""
        if any(route.source >= 0 and os.isatty(route.source) for route in self._routes):
            time.sleep(QUIET_S)
        return [_written(route) for route in self._routes]

    def passed(self, marks: Sequence[int]) -> bool:
        """Return whether that many bytes of each stream are passed on, or all that can be."""
        states = os.pread(self._charge, 2, 0)
        both = zip(self._routes, marks, states, strict=True)
        return all(state or _passed(route, mark) for route, mark, state in both)

    def catch_up(self) -> None:
        """Wait, for ``CATCH_UP_S`` at most, until the output so far is in the spools; keep it."""
        marks, until = self.written(), time.monotonic() + CATCH_UP_S
        while time.monotonic() < until and not self.ended:
            sizes = [os.fstat(route.spool).st_size for route in self._routes]
            if all(size >= mark for size, mark in zip(sizes, marks, strict=True)):
                break
            time.sleep(POLL_S)
        if self._copier is not None:
            self._copier.flush()

    def _say(self, number: int, state: int) -> None:
        os.pwrite(self._charge, bytes([state]), number)


def _written(route: Route) -> int:
    size = -1
    while size != (size := os.fstat(route.spool).st_size):  # a splice in between moved some
        waiting = _waiting(route)
    return size + waiting


def _waiting(route: Route) -> int:
    with contextlib.suppress(OSError, ValueError):  # closed by our own lane
        return int(struct.unpack("i", fcntl.ioctl(route.source, termios.FIONREAD, bytes(4)))[0])
    return 0


def _passed(route: Route, mark: int) -> bool:
    at = _position(route)
    return at >= mark or (at >= os.fstat(route.spool).st_size and not _waiting(route))


def _position(route: Route) -> int:
    return os.lseek(route.spool, 0, os.SEEK_CUR)


def _close(route: Route) -> None:
    source, route.source = route.source, -1
    if source >= 0:
        os.close(source)


class _Lane:
    """Carrier of one stream: one thread fills the spool from the job, another empties it."""

    def __init__(self, route: Route, say: Callable[[int], None]) -> None:
        self._route, self._say = route, say
        self._source = route.source
        self._is_pipe = stat.S_ISFIFO(os.fstat(route.source).st_mode)
        self._over = self._lost = False
        """No process writes any more; none reads any more."""
        self._can_send = True
        with contextlib.suppress(OSError):  # no pipe, or no more memory for pipes
            fcntl.fcntl(route.through, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        # No lock between the threads: one that holds it without a core would hold the job up.
        self._came, self._gone = (os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in "ab")
        for target in (self._take_all, self._pass_all):
            threading.Thread(target=target, daemon=True).start()

    def _behind(self) -> int:
        return os.fstat(self._route.spool).st_size - _position(self._route)

    # -- from the job

    def _take_all(self) -> None:
        poller = select.poll()
        poller.register(self._source, select.POLLIN)
        poller.register(self._gone, select.POLLIN)
        poller.register(self._route.through, 0)
        while not self._lost and self._take(poller):
            os.eventfd_write(self._came, 1)
            self._wait_behind(MAX_BEHIND)
        _close(self._route)
        self._over = True
        os.eventfd_write(self._came, 1)

    def _wait_behind(self, limit: int) -> None:
        """Wait until the reader is fewer than ``limit`` bytes behind, or gone."""
        while self._behind() >= limit and not self._lost:
            _rings(self._gone, POLL_S)

    def _take(self, poller: select.poll) -> bool:
        found = dict(poller.poll())
        if found.get(self._route.through, 0) & _GONE:
            self._lose()
        if self._source not in found or self._lost:
            return not self._lost
        try:
            return self._move() > 0
        except BlockingIOError:
            return True
        except OSError as error:
            # EIO: a terminal whose other side is closed. Else the spool takes no more.
            return error.errno != errno.EIO and self._take_without_spool()

    def _move(self) -> int:
        end = os.fstat(self._route.spool).st_size
        if self._is_pipe:
            return os.splice(self._source, self._route.spool, CHUNK, offset_dst=end)
        data = os.read(self._source, READ_BYTES)
        os.pwrite(self._route.spool, data, end)
        return len(data)

    def _take_without_spool(self) -> bool:
        self._wait_behind(1)
        data = b"" if self._lost else os.read(self._source, READ_BYTES)
        if data and not write_all(self._route.through, data):
            self._lose()
        return bool(data)

    # -- to the owner's stream

    def _pass_all(self) -> None:
        while self._wait():
            try:
                self._send()
            except BlockingIOError:
                select.select([], [self._route.through], [])
            except OSError:
                self._lose()
        self._say(LOST if self._lost else ENDED)
        os.close(self._route.through)

    def _wait(self) -> bool:
        while not (self._lost or self._over or self._behind()):
            if _rings(self._came):
                os.eventfd_read(self._came)
        return not self._lost and self._behind() > 0

    def _send(self) -> None:
        spool, through = self._route.spool, self._route.through
        if self._can_send:
            try:
                os.sendfile(through, spool, None, CHUNK)
                return
            except OSError as error:
                if error.errno not in _NO_SENDFILE:
                    raise
            self._can_send = False  # a file opened to append
        at = _position(self._route)
        done = os.write(through, os.pread(spool, READ_BYTES, at))
        os.lseek(spool, at + done, os.SEEK_SET)

    def _lose(self) -> None:
        self._lost = True
        for bell in (self._came, self._gone):
            os.eventfd_write(bell, 1)


def _rings(bell: int, timeout_s: float | None = None) -> bool:
    poller = select.poll()
    poller.register(bell, select.POLLIN)
    return bool(poller.poll(None if timeout_s is None else timeout_s * 1000))
