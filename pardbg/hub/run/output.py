"""The job's output on its way: read from the job, kept (the newest of it), passed on.

The job of an owner (``pardbg run``) writes to pipes or terminals, which that reads and passes on;
while an owner is stopped, the launcher reads them in its place (``StandIn``).
Without an owner it writes to files in memory, which need no reader: the launcher copies what comes,
the hub when that is killed, and nobody's death or sleep costs the job more than its output. Never
to our files: a full disk costs what we keep, not the job. What is kept lies in a file that others
follow by offset; its older pages are given back to the file system, so that offsets stay true and
the file stays small.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import stat
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pardbg.hub.ranks.processes import stat_fields
from pardbg.hub.run import config as files
from pardbg.words import size

PAGE: Final = 4096
READ_BYTES: Final = 64 << 10
MAX_KEPT_BYTES: Final = 8 << 20
MIN_KEPT_BYTES: Final = 64 << 10
TURN_MS: Final = 100
"""The job has ended: what nobody has written for this long is not waited for."""
MAX_REST_BYTES: Final = 1 << 20
"""… nor more than this: a pipe holds no more of what the job itself has written."""
COPY_S: Final = 0.04
TURN_READS: Final = 64
STDERR: Final = 2
_PUNCH_HOLE: Final = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_PTMX: Final = os.makedev(5, 2)
_PIDFD_GETFD, _PR_SET_PTRACER, _TIOCGPTN = 438, 0x59616D61, 0x80045430
_GONE: Final = select.POLLERR | select.POLLNVAL


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
        self._path, self._limit = path, limit
        self._first_aside = self._aside_path(0)
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

    def take(self, source: int, wait: bool = True) -> list[bytes]:
        """Keep what ``source`` has of the stream, and return it: with it, in order, what another
        process took meanwhile. Empty at the stream's end. Raises OSError: BlockingIOError where
        there is nothing now. Without ``wait``: who is at it is stopped, and merges what is put
        aside for it when it goes on."""
        begun = time.monotonic_ns()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return [self._put_aside(source)]
        try:
            found = [*self._missed(), *self._keep(self._aside_parts())]
            asked, data, failed = time.monotonic_ns(), b"", None
            try:
                data = os.read(source, READ_BYTES)
            except OSError as error:  # nothing now, or a terminal whose other side is closed
                failed = error
            # Stopped on the way here, and in the longer of the two times: before it read, or after.
            first = asked - begun > time.monotonic_ns() - asked
            aside = self._aside_parts()
            found += self._keep([*aside, data] if first else [data, *aside])
            if failed is not None and not found:
                raise failed
            return found
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def merge(self) -> None:
        """Keep what was put aside for a process that is no more."""
        if not self._has_aside():
            return
        with contextlib.suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._missed()
            self._keep(self._aside_parts())
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _asides(self) -> list[Path]:
        """In the order they were made. One that its reader was stopped at is followed by another:
        nobody waits for who is stopped."""
        start = f"{self._path.name}.aside"
        found = [name for name in os.listdir(self._path.parent) if name.startswith(start)]
        return [self._path.with_name(name) for name in sorted(found)]

    def _put_aside(self, source: int) -> bytes:
        last = self._asides()[-1:]
        number = int(last[0].name[-4:]) if last else 0
        aside = None
        while aside is None:
            aside, number = self._aside(number), number + 1
        try:
            data = os.read(source, READ_BYTES)
            aside.append(data)
            return data
        finally:
            aside.close()

    def _aside(self, number: int) -> RingFile | None:
        """It, if nobody is at it."""
        aside = RingFile(Path(self._aside_path(number)), self._limit)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(aside._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(aside._fd).st_nlink:  # else: merged a moment ago
                return aside
        aside.close()
        return None

    def _aside_parts(self) -> list[bytes]:
        """Take what was put aside."""
        found: list[bytes] = []
        asides = self._asides() if self._has_aside() else []
        while asides:
            for path in asides:
                aside = RingFile(path, self._limit, 0)
                fcntl.flock(aside._fd, fcntl.LOCK_EX)
                path.unlink()
                found += aside._missed()
                aside.close()
            asides = self._asides()  # stopped meanwhile, it has more
        return found

    def _keep(self, parts: list[bytes]) -> list[bytes]:
        """Append those that are not empty; return them."""
        kept = [part for part in parts if part]
        for part in kept:
            self.append(part)
        return kept

    def _has_aside(self) -> bool:
        """The first of them is there: who takes them takes all."""
        return os.access(self._first_aside, os.F_OK)

    def _aside_path(self, number: int) -> str:
        return f"{self._path}.aside{number:04}"

    @property
    def behind(self) -> bool:
        """Return whether another process has taken something of the stream."""
        return os.fstat(self._fd).st_size > self._end or self._has_aside()

    def _missed(self) -> list[bytes]:
        found = []
        while os.fstat(self._fd).st_size > self._end:
            try:
                at = os.lseek(self._fd, self._end, os.SEEK_DATA)
            except OSError:  # a hole up to the end
                at = os.fstat(self._fd).st_size
            if at > self._end:
                lost = f"pardbg: dropped {size(at - self._end)} of output written while stopped"
                os.write(STDERR, f"{lost}\n".encode())
            found.append(os.pread(self._fd, READ_BYTES, at))
            self._end = at + len(found[-1])
        return found

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

    def finish(self) -> None:
        """Pass on the rest after the job's end."""
        self._over = True
        for thread in self._threads:
            thread.join()

    def _copy(self, stream: Stream, path: Path, limit: int) -> None:
        kept = _ring(path, limit, 0)  # a stand-in may have been first
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
        behind = stream.source not in found and kept is not None and kept.behind
        if not found and not behind:
            return not self._over
        if stream.source not in found and not behind:
            return not found.get(stream.through or 0, 0) & _GONE
        try:
            parts = (
                [os.read(stream.source, READ_BYTES)] if kept is None else kept.take(stream.source)
            )
        except OSError as error:
            return error.errno == errno.EAGAIN  # else: a terminal whose other side is closed
        data = b"".join(parts)
        if self._over:  # of the pipe alone: the rest is what a stand-in has kept
            self._left[stream.source] -= min(len(data), READ_BYTES)
            if self._left[stream.source] <= 0:
                return False
        return bool(data) and (stream.through is None or write_all(stream.through, data))


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


def pipes() -> tuple[list[Stream], tuple[int, int]]:
    """Return two pipes: our ends (not inherited) and the job's stdout and stderr."""
    (out_r, out_w), (err_r, err_w) = os.pipe(), os.pipe()
    for fd in (out_r, err_r):
        os.set_blocking(fd, False)  # a stand-in may have been quicker
    return [Stream(out_r, files.OUT_FILE), Stream(err_r, files.ERR_FILE)], (out_w, err_w)


class StandIn:
    """Keeps what a job writes to the pipes or terminals of an owner that is stopped (SIGSTOP): else
    the job would wait once one is full. The owner passes it on when it runs again."""

    def __init__(self, run_dir: Path, owner: int, ends: Sequence[int]) -> None:
        self._run_dir, self._owner = run_dir, owner
        known = [os.fstat(fd) for fd in ends]
        names = (files.OUT_FILE, files.ERR_FILE)
        self._names = {_end_of(facts): name for facts, name in zip(known, names, strict=True)}
        self._open: list[tuple[int, RingFile]] = []

    def turn(self) -> bool:
        """Read what is there if the owner is stopped; return whether it is."""
        stopped = self._stopped()
        with contextlib.suppress(OSError):
            if stopped and not self._open:
                self._open_ends()
        for source, ring in self._open:
            with contextlib.suppress(OSError):
                for _ in range(TURN_READS):
                    if not self._stopped() or not any(ring.take(source, wait=False)):
                        break
        if not stopped:
            self.close()
        return stopped

    def _stopped(self) -> bool:
        return (stat_fields(self._owner) or " ")[0] in "Tt"

    def close(self) -> None:
        """Leave them to the owner."""
        for source, ring in self._open:
            os.close(source)
            ring.merge()
            ring.close()
        self._open = []

    def _open_ends(self) -> None:
        """By the owner's own descriptors: nobody else keeps one open that the owner closes."""
        limit, missing = kept_bytes(self._run_dir), dict(self._names)
        for path in Path(f"/proc/{self._owner}/fd").iterdir():
            with contextlib.suppress(OSError):
                facts, source = path.stat(), -1
                if facts.st_rdev == _PTMX:
                    source = _copied(self._owner, int(path.name))
                    (number,) = struct.unpack("i", fcntl.ioctl(source, _TIOCGPTN, bytes(4)))
                    name = missing.pop(("terminal", number), None)
                elif name := missing.pop(_end_of(facts), None):
                    source = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                if name:
                    self._open.append((source, RingFile(self._run_dir / name, limit)))
                elif source >= 0:
                    os.close(source)


def _end_of(facts: os.stat_result) -> tuple[str, int]:
    """Return what both ends of a pipe or terminal have in common."""
    first = 136  # majors of pseudo-terminals: 256 of them each
    if stat.S_ISCHR(facts.st_mode) and first <= os.major(facts.st_rdev) < first + 8:
        number = (os.major(facts.st_rdev) - first) * 256 + os.minor(facts.st_rdev)
        return "terminal", number
    return ("pipe" if stat.S_ISFIFO(facts.st_mode) else "other", facts.st_ino)


def _copied(pid: int, fd: int) -> int:
    """Another process's descriptor: to open a terminal's own side would make a new one."""
    process = os.pidfd_open(pid)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        found = int(libc.syscall(_PIDFD_GETFD, process, fd, 0))
    finally:
        os.close(process)
    if found < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return found


def let_stand_in(pid: int) -> None:
    """Allow ``_copied`` to a process and its descendants, where Yama allows it to parents only."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)


def memory_files() -> tuple[int, int]:
    """Return what a job without an owner has for stdout and stderr."""
    fds = os.memfd_create("stdout"), os.memfd_create("stderr")
    for fd in fds:
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    return fds


class Copier:
    """Copies what a job writes to its ``memory_files``, and gives their memory back. What came
    faster than that is left out: a hole in the copy, which those who read it count."""

    def __init__(self, run_dir: Path, sources: Sequence[int]) -> None:
        self._limit = kept_bytes(run_dir)
        self._over = threading.Event()
        names = (files.OUT_FILE, files.ERR_FILE)
        kept = [_ring(run_dir / name, self._limit) for name in names]
        self._copies = [_Copy(fd, ring) for fd, ring in zip(sources, kept, strict=True)]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Copy the rest after the job's end."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        over = False
        while not over:
            over = self._over.wait(COPY_S)
            for copy in self._copies:
                copy.turn(self._limit)


def _ring(path: Path, limit: int, seen: int | None = None) -> RingFile | None:
    try:
        return RingFile(path, limit, seen)
    except OSError:
        return None  # no room even for an empty file


class _Copy:
    def __init__(self, source: int, kept: RingFile | None) -> None:
        self._source, self._kept = source, kept
        self._at = self._freed = kept.end if kept is not None else 0
        """As far as whoever copied before us came."""

    def turn(self, limit: int) -> None:
        end = os.fstat(self._source).st_size
        if end < self._at:  # `> /dev/stdout` in a shell truncates it
            self._at = self._freed = 0
        if end - self._at > limit:
            self._at = end - limit
            if self._kept is not None:
                self._kept.skip_to(self._at)
        while self._at < end:
            data = os.pread(self._source, min(READ_BYTES, end - self._at), self._at)
            if not data:
                break
            self._at += len(data)
            if self._kept is not None:
                self._kept.append(data)
        until = self._at & ~(PAGE - 1)
        if until > self._freed and _punch(self._source, self._freed, until - self._freed):
            self._freed = until
