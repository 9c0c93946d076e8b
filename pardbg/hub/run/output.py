"""The kept part of the job's output: its newest bytes, in files that readers follow by offset.

A job without an owner writes to files in memory, which need no reader: the launcher copies them, or
the hub once the launcher is killed, so a killed or stopped process of ours costs output at most.
The output of a job with an owner is copied in the same way from the spools of ``flow``. The job
never writes to our files: a full disk costs kept output, not the job. Older pages are freed, so
offsets stay true and the files stay small.
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
"""Maximum bytes copied from a spool per turn; the rest becomes a hole in the copy."""
IN_FLIGHT_BYTES: Final = 4 << 20
"""Newest bytes of a spool that are not freed: the owner's pipe refers to their pages."""
_PUNCH_HOLE: Final = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


def kept_bytes(folder: Path) -> int:
    """Return the limit on kept bytes of each stream: 8 MiB, or an eighth of the free space."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return MIN_KEPT_BYTES
    return max(MIN_KEPT_BYTES, min(MAX_KEPT_BYTES, found.f_bavail * found.f_frsize // 8))


class RingFile:
    """File with the newest bytes of a stream, each at its offset in the stream."""

    def __init__(self, path: Path, limit: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._limit = limit
        self._end = os.fstat(self._fd).st_size
        self._freed = 0
        """Bytes before this offset are freed."""
        self._can_punch = True

    def append(self, data: bytes) -> None:
        """Append ``data``; without room for it, leave a hole of its size."""
        end = self._end + len(data)
        if not self._can_punch and end > self._limit:
            self._end = _page_end(end)
            return
        if not self._write(data) and not (self._free(self._end) and self._write(data)):
            self._end = _page_end(end)
            return
        self._end = end
        if end - self._freed > self._limit + self._limit // 4:
            self._free(end - self._limit)

    @property
    def end(self) -> int:
        """Return the length of the stream so far, in bytes."""
        return self._end

    def skip_to(self, end: int) -> None:
        """Continue at offset ``end``; the bytes in between become a hole."""
        self._end = max(self._end, _page_end(end))

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

    def _free(self, until: int) -> bool:
        until &= ~(PAGE - 1)
        if until <= self._freed:
            return False
        self._can_punch = _punch(self._fd, self._freed, until - self._freed)
        if self._can_punch:
            self._freed = until
        return self._can_punch


def _page_end(offset: int) -> int:
    return (offset + PAGE - 1) & ~(PAGE - 1)


def _punch(fd: int, offset: int, length: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    where = ctypes.c_int64(offset), ctypes.c_int64(length)
    try:
        return int(libc.fallocate(fd, _PUNCH_HOLE, *where)) == 0
    except AttributeError:
        return False


def write_all(fd: int, data: bytes) -> bool:
    """Write everything, at the reader's pace; return False if the reader is gone."""
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
    """Return stdout and stderr for a job without an owner: descriptors of files in memory."""
    fds = os.memfd_create("stdout"), os.memfd_create("stderr")
    for fd in fds:
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    return fds


class Copier:
    """Thread that copies a job's ``memory_files`` to the run's directory and frees their memory.

    Output beyond its limit per turn is skipped: a hole in the copy, which readers count."""

    def __init__(self, run_dir: Path, sources: Sequence[int], *, passing: bool = False) -> None:
        """``passing``: the sources are spools; only bytes that were passed on are freed."""
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
        """Copy the output so far."""
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


def _ring(path: Path, limit: int) -> RingFile | None:
    try:
        return RingFile(path, limit)
    except OSError:
        return None


class _Copy:
    def __init__(self, source: int, kept: RingFile | None, limit: int, passing: bool) -> None:
        self._source, self._kept = source, kept
        self._limit, self._passing = limit, passing
        self._at = kept.end if kept is not None else 0
        """Offset that is copied so far, also by an earlier copier."""
        self._freed = 0 if passing else self._at

    def turn(self) -> None:
        end = os.fstat(self._source).st_size
        if end < self._at:  # `> /dev/stdout` in a shell truncates it
            self._at = self._freed = 0
        if end - self._at > self._limit:
            self._at = _page_end(end - self._limit)
            if self._kept is not None:
                self._kept.skip_to(self._at)
        while self._at < end:
            data = os.pread(self._source, min(READ_BYTES, end - self._at), self._at)
            if not data:
                break
            self._at += len(data)
            if self._kept is not None:
                self._kept.append(data)
        until = self._freeable() & ~(PAGE - 1)
        if until > self._freed and _punch(self._source, self._freed, until - self._freed):
            self._freed = until

    def _freeable(self) -> int:
        if not self._passing:
            return self._at
        return min(self._at, os.lseek(self._source, 0, os.SEEK_CUR) - IN_FLIGHT_BYTES)
