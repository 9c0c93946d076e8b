"""The job's output on its way: read from the job, kept (the newest of it), passed on.

The job writes to pipes or terminals, never to our files: a full disk costs what we keep of its
output, not the job. Who reads them is the owner (``pardbg run``), else the launcher, and the hub
when that is killed. What is kept lies in a file that others follow by offset; its older pages are
given back to the file system, so that offsets stay true and the file stays small.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pardbg.hub.run import config as files

PAGE: Final = 4096
READ_BYTES: Final = 64 << 10
MAX_KEPT_BYTES: Final = 8 << 20
MIN_KEPT_BYTES: Final = 64 << 10
TURN_MS: Final = 100
"""The job has ended: what nobody has written for this long is not waited for."""
MAX_REST_BYTES: Final = 1 << 20
"""… nor more than this: a pipe holds no more of what the job itself has written."""
_PUNCH_HOLE: Final = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_GONE: Final = select.POLLERR | select.POLLNVAL


def kept_bytes(folder: Path) -> int:
    """How much of each stream to keep there: 8 MiB, or an eighth of what is free."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return MIN_KEPT_BYTES
    return max(MIN_KEPT_BYTES, min(MAX_KEPT_BYTES, found.f_bavail * found.f_frsize // 8))


class RingFile:
    """Keeps the newest bytes of a stream in a file, each at its offset in the stream."""

    def __init__(self, path: Path, limit: int) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._limit = limit
        self._end = os.fstat(self._fd).st_size
        self._freed = 0
        """Everything before is given back."""
        self._can_free = True

    def append(self, data: bytes) -> None:
        """Keep ``data``; what does not fit is left out: its place in the file is a hole."""
        end = self._end + len(data)
        if not self._can_free and end > self._limit:
            self._end = _up(end)
            return
        if not self._write(data) and not (self._give_back(self._end) and self._write(data)):
            self._end = _up(end)
            return
        self._end = end
        if end - self._freed > self._limit + self._limit // 4:
            self._give_back(end - self._limit)

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, data: bytes) -> bool:
        at, view = self._end, memoryview(data)
        try:
            while view:
                done = os.pwrite(self._fd, view, at)
                at, view = at + done, view[done:]
        except OSError:
            return False
        return True

    def _give_back(self, until: int) -> bool:
        """Free the whole pages before ``until``."""
        until &= ~(PAGE - 1)
        if until <= self._freed:
            return False
        self._can_free = _punch(self._fd, self._freed, until - self._freed)
        if self._can_free:
            self._freed = until
        return self._can_free


def _up(offset: int) -> int:
    return (offset + PAGE - 1) & ~(PAGE - 1)


def _punch(fd: int, offset: int, length: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    where = ctypes.c_int64(offset), ctypes.c_int64(length)
    try:
        return int(libc.fallocate(fd, _PUNCH_HOLE, *where)) == 0
    except AttributeError:
        return False


@dataclass(frozen=True, slots=True)
class Stream:
    """One of the job's output streams."""

    source: int
    """What the job writes, for us to read."""
    file: str
    """Its file's name in the run's directory."""
    through: int | None = None
    """Where it is passed on to."""


class Pump:
    """Reads the job's output, a thread a stream. If what it is passed on to is closed, it stops
    reading: the job's next write fails as it would have without us."""

    def __init__(self, run_dir: Path, streams: list[Stream]) -> None:
        limit = kept_bytes(run_dir)
        self._over = False
        self._left = dict.fromkeys((one.source for one in streams), MAX_REST_BYTES)
        self._threads = [
            threading.Thread(target=self._copy, args=(one, run_dir / one.file, limit), daemon=True)
            for one in streams
        ]
        for thread in self._threads:
            thread.start()

    def finish(self, timeout_s: float | None = None) -> None:
        """The job has ended: pass on what it had written before."""
        self._over = True
        for thread in self._threads:
            thread.join(timeout_s)

    def _copy(self, stream: Stream, path: Path, limit: int) -> None:
        try:
            kept: RingFile | None = RingFile(path, limit)
        except OSError:
            kept = None  # no room even for an empty file: passed on all the same
        poller = select.poll()
        poller.register(stream.source, select.POLLIN)
        if stream.through is not None:
            poller.register(stream.through, 0)
        while self._one_turn(stream, poller, kept):
            pass
        os.close(stream.source)
        if kept is not None:
            kept.close()

    def _one_turn(self, stream: Stream, poller: select.poll, kept: RingFile | None) -> bool:
        """False at the stream's end."""
        found = dict(poller.poll(TURN_MS))
        if not found:
            return not self._over
        if stream.source not in found:
            return not found.get(stream.through or 0, 0) & _GONE
        try:
            data = os.read(stream.source, READ_BYTES)
        except OSError as error:
            return error.errno == errno.EAGAIN  # else: a terminal whose other side is closed
        if kept is not None:
            kept.append(data)
        if self._over:
            self._left[stream.source] -= len(data)
            if self._left[stream.source] <= 0:
                return False
        return bool(data) and (stream.through is None or _write_all(stream.through, data))


def _write_all(fd: int, data: bytes) -> bool:
    """Write everything, however slow the reader is; False if there is none any more."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])
        except OSError:
            return False
    return True


def pipes() -> tuple[list[Stream], tuple[int, int]]:
    """Two pipes: our ends (not inherited) and the job's stdout and stderr."""
    (out_r, out_w), (err_r, err_w) = os.pipe(), os.pipe()
    return [Stream(out_r, files.OUT_FILE), Stream(err_r, files.ERR_FILE)], (out_w, err_w)
