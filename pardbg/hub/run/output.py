"""The job's output as it is kept: the newest of it, in files that others follow by offset.

A job without an owner writes to files in memory, which need no reader: the launcher copies what
comes, the hub when that is killed, and nobody's death or sleep costs the job more than its output.
What an owner passes on is copied in the same way from the spools of ``flow``. Never does the job
write to our files: a full disk costs what we keep, not the job. Older pages of what is kept are
given back to the file system, so that offsets stay true and the file stays small.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pardbg.hub.run import config as files

PAGE: Final = 4096
READ_BYTES: Final = 64 << 10
MAX_KEPT_BYTES: Final = 8 << 20
MIN_KEPT_BYTES: Final = 64 << 10
COPY_S: Final = 0.04
BURST_BYTES: Final = 1 << 20
"""Maximum bytes kept of what is passed on between two turns: the rest is a hole."""
IN_FLIGHT_BYTES: Final = 4 << 20
"""Not given back of what is passed on: the owner's pipe has the spool's pages, not copies."""
_PUNCH_HOLE: Final = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


def kept_bytes(folder: Path) -> int:
    """Return the bytes to keep of each stream: 8 MiB, or an eighth of the free space."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return MIN_KEPT_BYTES
    return max(MIN_KEPT_BYTES, min(MAX_KEPT_BYTES, found.f_bavail * found.f_frsize // 8))


class RingFile:
    """Keeps the newest bytes of a stream in a file, each at its offset in the stream."""

    def __init__(self, path: Path, limit: int, seen: int | None = None) -> None:
        """``seen``: bytes of the stream taken before; None: those in the file."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._limit = limit
        self._end = os.fstat(self._fd).st_size if seen is None else seen
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

    @property
    def end(self) -> int:
        """Return the number of bytes of the stream seen so far."""
        return self._end

    def skip_to(self, end: int) -> None:
        """Give up what comes before: it becomes a hole."""
        self._end = max(self._end, _up(end))

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


def write_all(fd: int, data: bytes) -> bool:
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


def memory_files() -> tuple[int, int]:
    """Return what a job without an owner has for stdout and stderr."""
    fds = os.memfd_create("stdout"), os.memfd_create("stderr")
    for fd in fds:
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    return fds


class Copier:
    """Copies what a job writes to its ``memory_files``, and gives their memory back. What came
    faster than that is left out: a hole in the copy, which those who read it count."""

    def __init__(self, run_dir: Path, sources: Sequence[int], *, passing: bool = False) -> None:
        """``passing``: the sources are spools, of which nothing goes that is not passed on."""
        limit = kept_bytes(run_dir)
        self._over = threading.Event()
        self._turn = threading.Lock()
        names = (files.OUT_FILE, files.ERR_FILE)
        kept = [_ring(run_dir / name, limit) for name in names]
        self._copies = [
            _Copy(fd, ring, min(limit, BURST_BYTES) if passing else limit, passing)
            for fd, ring in zip(sources, kept, strict=True)
        ]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def flush(self) -> None:
        """Copy what is there now."""
        with self._turn:
            for copy in self._copies:
                copy.turn()

    def finish(self) -> None:
        """Copy the rest after the job's end."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        over = False
        while not over:
            over = self._over.wait(COPY_S)
            self.flush()


def _ring(path: Path, limit: int, seen: int | None = None) -> RingFile | None:
    try:
        return RingFile(path, limit, seen)
    except OSError:
        return None  # no room even for an empty file


class _Copy:
    def __init__(self, source: int, kept: RingFile | None, limit: int, passing: bool) -> None:
        self._source, self._kept = source, kept
        self._limit, self._passing = limit, passing
        self._at = kept.end if kept is not None else 0
        """As far as whoever copied before us came."""
        self._freed = 0 if passing else self._at

    def turn(self) -> None:
        end = os.fstat(self._source).st_size
        if end < self._at:  # `> /dev/stdout` in a shell truncates it
            self._at = self._freed = 0
        if end - self._at > self._limit:
            self._at = _up(end - self._limit)
            if self._kept is not None:
                self._kept.skip_to(self._at)
        while self._at < end:
            data = os.pread(self._source, min(READ_BYTES, end - self._at), self._at)
            if not data:
                break
            self._at += len(data)
            if self._kept is not None:
                self._kept.append(data)
        until = self._done() & ~(PAGE - 1)
        if until > self._freed and _punch(self._source, self._freed, until - self._freed):
            self._freed = until

    def _done(self) -> int:
        if not self._passing:
            return self._at
        return min(self._at, os.lseek(self._source, 0, os.SEEK_CUR) - IN_FLIGHT_BYTES)
