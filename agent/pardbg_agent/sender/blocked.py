"""System calls that block the program's main thread outside of ops: asleep, at a file, on a socket,
in a lock. Sampled with each heartbeat; Linux only."""

from __future__ import annotations

import contextlib
import os
import platform
import queue
import socket
import sys
import threading
import time
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pardbg_agent import wire
from pardbg_agent.clock import now_ns
from pardbg_agent.control.awaiting import awaited
from pardbg_agent.control.inspect import MAX_WALKED, inside_own
from pardbg_agent.identity import read_text
from pardbg_agent.life.own_frames import is_own
from pardbg_agent.sender.loader_workers import POLLS, Loaders
from pardbg_agent.tables.code_files import is_program

if TYPE_CHECKING:
    from types import FrameType

    from pardbg_agent.watched_rank import Core

EVERY_NS: Final = wire.BEAT_NS * 9 // 10
_MAX_AGAIN_S: Final = 0.02
"""Switch interval above which the interpreter's lock is not told from others."""
_MAX_PLACES: Final = 256
_MAX_BUSY: Final = 128
"""Number of places up to which new ones at work are told: a call that blocks counts for more."""
_MAX_BEATS: Final = 40
_MAX_FILES: Final = 32
"""Maximum number of names up to which files are named: a loader reads thousands."""
_MAX_TEXT: Final = 160
_X86: Final = {
    "sleep": (35, 230), "lock": (202,), "child": (61, 247), "file lock": (72, 73),
    "fd": (0, 1, 17, 18, 19, 20, 74, 75, 217), "file": (162, 257, 262),
    "socket": (42, 43, 44, 45, 46, 47, 288), "poll": (7, 232, 271, 281), "select": (23, 270),
}  # fmt: skip
_ARM: Final = {
    "sleep": (101, 115), "lock": (98,), "child": (95, 260), "file lock": (25, 32),
    "fd": (61, 63, 64, 65, 66, 67, 68, 82, 83), "file": (56, 79, 81),
    "socket": (202, 203, 206, 207, 211, 212), "poll": (22, 73), "select": (72,),
}  # fmt: skip
_CALLS: Final = {
    number: kind
    for kind, numbers in {"x86_64": _X86, "aarch64": _ARM}.get(platform.machine(), {}).items()
    for number in numbers
}
_BATON: Final = "/torch/utils/file_baton.py"
_LOADER_DEPTH: Final = 12
_MAX_CHILDREN: Final = 64
_MAX_ENDS: Final = 32
_WRITES: Final = frozenset(
    {"x86_64": (1, 18, 20), "aarch64": (64, 66, 68)}.get(platform.machine(), ())
)
_OPENS: Final = frozenset({"x86_64": (257,), "aarch64": (56,)}.get(platform.machine(), ()))
"""openat, whose second argument is a path."""
_CONNECTS: Final = frozenset({"x86_64": (42,), "aarch64": (203,)}.get(platform.machine(), ()))
_UNTOUCHED: Final = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
"""Type with which Python's socket leaves its descriptor as it is: otherwise, with a default
timeout, it makes the descriptor non-blocking for the program, too."""
_OPENS_FIFO: Final = ("wait_for_partner", "fifo_open")
"""Where the kernel lets who opens a FIFO wait for its other end."""
_READS: Final = frozenset({"x86_64": ("0",), "aarch64": ("63",)}.get(platform.machine(), ()))
_PRIVATE: Final = 128
"""Flag of a futex that threads of one process share: no queue between processes has it."""
_FILE_LOCKS: Final = "/filelock/"
_LOADER, _POOL = "/torch/utils/data/dataloader.py", "/multiprocessing/pool.py"
_OF_OPS: Final = ("/torch/distributed/", "/torch/_C/_distributed")


class Blocked:
    """Sampler of the main thread's blocking calls: a PROBE record for each time one is seen."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._fd = -1
        with contextlib.suppress(OSError):  # another kernel, or one that does not show it
            self._fd = os.open(f"/proc/self/task/{os.getpid()}/syscall", os.O_RDONLY | os.O_CLOEXEC)
        self._due_ns = 0
        self._seen: tuple[str, int] = ("", 0)
        self._more = self._last_ns = 0
        """Repeated sightings at one place, and the last one's time; recorded once it has moved."""
        self._names = set[str]()
        self._loaders = Loaders(core)
        self._busy: Counter[str] = Counter()
        """Sightings of the thread at work outside of phases, recorded once it has moved."""
        self._beats = 1
        """Heartbeats since this look was due: a call of the thread at work may hold Python's lock,
        and let no look happen until it returns."""
        self._busy_made = 0
        """Number of records at the last of these, and of own ones since."""

    def look(self, made: int) -> None:
        """Sample the main thread. ``made``: number of records; unchanged, the thread stays."""
        now = now_ns()
        if self._fd < 0 or now < self._due_ns or self._core.level < 2 or "torch" not in sys.modules:
            return  # without torch there are no ops: no rank waits
        waited_ns, self._due_ns = now - (self._due_ns or now), now + EVERY_NS
        self._beats = min(max(1, 1 + waited_ns // wire.BEAT_NS), _MAX_BEATS)
        if made != self._seen[1]:
            made += self._moved()
        made += self._core.guard.call("loader workers", self._loaders.look) or 0
        if self._busy and made != self._busy_made:
            made += self._tell_busy(now)
        with contextlib.suppress(OSError):  # a file that was closed meanwhile
            self._sample(made, now)

    def _sample(self, made: int, now: int) -> None:
        words = os.pread(self._fd, 256, 0).split()
        kind = _kind(words) if len(words) > 2 else ""
        wakes: bool | None = words[:1] == [b"running"]
        if kind == "lock" and (_frame() is None or (wakes := self._wakes(words)) is None):
            return
        frame = _frame() if kind or wakes else None
        if frame is None:
            return
        if wakes:
            if not getattr(getattr(self._core.context, "loop", None), "phase", 0):
                self._busy[wire.BUSY + "\n".join(("busy", "", _place(frame)))] += self._beats
                self._busy_made = made
            return
        number, fd = int(words[0]), int(words[1], 16)
        waits = kind == "poll" and bool(awaited(frame))
        if number in POLLS and int(words[2], 16) == 1 and not waits:
            kind, fd = "fd", int.from_bytes(_memory(fd, 4), sys.byteorder, signed=True)
        if number in _OPENS:
            detail = _fifo(int(words[2], 16))
        else:
            kind, detail = _told(kind, fd, frame)
            if kind == "socket" and not detail:
                still = made == self._seen[1]  # to search for the other end takes a while
                detail = _peer(fd, still) or f"{_asked(number, words)}\t\t"
        detail = detail or "\t\ttask" * waits
        if kind in ("pipe", "terminal") and number in _WRITES:
            kind = f"full {kind}"
        if len(self._names) >= _MAX_FILES and kind != "file lock":
            detail = ""
        name = wire.BLOCKED + "\n".join((kind, detail, _place(frame)))
        if (name, made) == self._seen:
            self._more, self._last_ns = self._more + 1, now
            return
        self._seen = name, made + self._moved() + 1
        self._record(name, now, 0)

    def _moved(self) -> int:
        """Record the repeated sightings; return the number of records that took."""
        more, self._more = self._more, 0
        if more:
            self._record(self._seen[0], self._last_ns, more)
        return bool(more)

    def _tell_busy(self, now: int) -> int:
        """Record the sightings at work; return the number of records that took."""
        told, self._busy = self._busy, Counter()
        known = [name for name in told if name in self._names or len(self._names) < _MAX_BUSY]
        for name in known:
            self._record(name, now, told[name])
        return len(known)

    def _wakes(self, words: list[bytes]) -> bool | None:
        """Return whether the thread waits for the interpreter, and so wakes now and then; None: not
        known."""
        again_s = 2.5 * sys.getswitchinterval()
        given = f"/proc/self/task/{os.getpid()}/schedstat"  # ends with how often it had a core
        times = read_text(given).split()[2:]
        if again_s > _MAX_AGAIN_S or times in ([], ["0"]):  # a kernel may not count
            return None
        time.sleep(again_s)
        return os.pread(self._fd, 256, 0).split() != words or read_text(given).split()[2:] != times

    def _record(self, name: str, t_ns: int, more: int) -> None:
        if name in self._names or len(self._names) < _MAX_PLACES:
            self._busy_made += 1
            self._names.add(name)
            self._core.mark(wire.Kind.PROBE, name, t_ns, more)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _kind(words: list[Any]) -> str:
    """Return the kind of call; to select nothing is to sleep, as Python before 3.11 does."""
    kind = _CALLS.get(int(words[0]), "")
    return ("poll" if int(words[1], 16) else "sleep") if kind == "select" else kind


def _frame() -> FrameType | None:
    """Return the main thread's frame in the program; None: it is in the agent or in an op."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return None if frame is None or inside_own(frame) or _in_op(frame) else frame


def _in_op(frame: FrameType) -> bool:
    """Return whether torch issues or awaits an op in this frame, as backward may in C++."""
    code = frame.f_code
    return code.co_name == "_engine_run_backward" or any(p in code.co_filename for p in _OF_OPS)


def _place(frame: FrameType | None) -> str:
    """Return ``train.py:88 in forward``: the innermost frame of the program's code, or of an await
    where an event loop is idle, else the innermost."""
    for file, line, function in reversed(awaited(frame)):
        if is_program(file):
            return f"{os.path.basename(file)}:{line}" + _within(function)
    inner, walked = frame, 0
    while frame is not None and walked < MAX_WALKED and not is_program(frame.f_code.co_filename):
        frame, walked = frame.f_back, walked + 1
    at = frame or inner
    if at is None or is_own(at.f_code.co_filename):
        return ""
    return f"{os.path.basename(at.f_code.co_filename)}:{at.f_lineno}" + _within(at.f_code.co_name)


def _within(function: str) -> str:
    return "" if function.startswith("<") else f" in {function}"


def _told(kind: str, fd: int, frame: FrameType) -> tuple[str, str]:
    """Return (kind, file, other process and what it does, by tabs): what a file descriptor is, its
    link says; torch's lock files, polled locks, loaders and pools are known by their frames."""
    code = frame.f_code
    if code.co_filename.endswith(_BATON) and code.co_name == "wait":
        path = str(getattr(frame.f_locals.get("self"), "lock_file_path", ""))
        held = any(_is_open_in(pid, path) for pid in os.listdir("/proc") if pid.isdigit())
        return "lock file", f"{path[:_MAX_TEXT]}\t\t{'held' if held else ''}"
    if kind == "sleep" and _FILE_LOCKS in code.co_filename:
        path = os.path.abspath(str(frame.f_locals.get("lock_filename", "")))
        return "file lock", f"{path[:_MAX_TEXT]}\t{_locked_by(path)}\t"
    if kind in ("poll", "lock", "fd", "socket") and (worker := _busy_worker(frame)):
        return "worker", "\t" + worker
    if kind not in ("fd", "file lock"):
        return kind, _queue(frame) if kind == "lock" else ""
    path = os.readlink(f"/proc/self/fd/{fd}")
    if kind == "file lock":
        holder = _holder(os.getpid())
        return kind, f"{path[:_MAX_TEXT]}\t{holder or ''}\t"
    if path.startswith(("socket:", "pipe:")):
        return ("terminal" if fd == 0 else path.partition(":")[0]), ""  # it asks on stdin
    if "pipe_" in read_text(f"/proc/self/task/{os.getpid()}/wchan"):  # of a name: a FIFO
        return "pipe", path[:_MAX_TEXT]
    return ("terminal" if path.startswith(("/dev/pts", "/dev/tty")) else "file"), path[:_MAX_TEXT]


def _queue(frame: FrameType) -> str:
    """Return that a thread waits for an item of a ``queue.Queue``, or for room, by tabs."""
    code = (frame.f_back or frame).f_code  # the innermost one is a Condition's wait
    of = {"get": "queue", "put": "full queue"}.get(code.co_name, "")
    return f"\t\t{of}" if of and code.co_filename == queue.__file__ else ""


def _fifo(address: int) -> str:
    """Return the path of a FIFO whose opening waits for its other end, marked as FIFO, by tabs;
    else empty: a loader opens thousands of files. The path is the kernel's argument: the file may
    be gone, and asking it may block."""
    if read_text(f"/proc/self/task/{os.getpid()}/wchan") not in _OPENS_FIFO:
        return ""
    path = _memory(address, _MAX_TEXT).partition(b"\0")[0].decode("utf-8", "replace")
    return f"{path}\t\tfifo" if path and path.isprintable() else ""


def _memory(address: int, size: int) -> bytes:
    """Return bytes of this process's memory as the kernel reads them; empty if unmapped."""
    fd = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, size, address)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(fd)


def _peer(fd: int, who: bool) -> str:
    """Return ``10.0.0.7:443``, the other end of a connected socket, and, if ``who``, the rank's
    process that has it, by tabs; empty without a name."""
    copy = os.dup(fd)
    try:
        of = socket.socket(type=_UNTOUCHED, fileno=copy)
    except OSError:  # it is none any more
        os.close(copy)
        return ""
    with of, contextlib.suppress(OSError):
        here, there = of.getsockname(), of.getpeername()
        if name := _address(there):
            return f"{name}\t{_process_at(there, here) if who else ''}\t"
    return ""


@lru_cache(_MAX_ENDS)
def _process_at(here: object, there: object) -> str:
    """Return the process, among the launcher's, with the end ``here`` of a connection within this
    host; empty: none of them."""
    if not (isinstance(here, tuple) and isinstance(there, tuple) and here[0] == there[0]):
        return ""
    ends = [f"{at[1]:04X}" for at in (here, there)]
    table = [
        row.split() for row in read_text(f"/proc/net/tcp{'6' * (':' in here[0])}").splitlines()
    ]
    inodes = [row[9] for row in table if [at.rpartition(":")[2] for at in row[1:3]] == ends]
    links = [f"socket:[{inode}]" for inode in inodes]
    return next((p for p in _siblings() if any(_is_open_in(p, at) for at in links)), "")


def _siblings() -> list[str]:
    """Return the other processes of its launcher."""
    above, own = os.getppid(), str(os.getpid())
    pids = read_text(f"/proc/{above}/task/{above}/children").split()[:_MAX_CHILDREN]
    return [pid for pid in pids if pid != own]


def _locked_by(path: str) -> str:
    """Return which of its launcher's processes has a file open and a lock on a file, as one that
    keeps it has; empty: none of them."""
    rows = (line.split() for line in read_text("/proc/locks").splitlines())
    holders = {row[4] for row in rows if len(row) > 4 and row[1] != "->"}
    return next((p for p in _siblings() if p in holders and _is_open_in(p, path)), "")


def _asked(number: int, words: list[bytes]) -> str:
    """Return the address of a connect call."""
    of = _memory(int(words[2], 16), 24) if number in _CONNECTS else b""
    family, port = int.from_bytes(of[:2], sys.byteorder), int.from_bytes(of[2:4], "big")
    at = {int(socket.AF_INET): of[4:8], int(socket.AF_INET6): of[8:24]}.get(family, b"")
    return _address((socket.inet_ntop(family, at), port)) if len(at) in (4, 16) else ""


def _address(of: object) -> str:
    if isinstance(of, tuple) and len(of) > 1:
        return f"[{of[0]}]:{of[1]}" if ":" in str(of[0]) else f"{of[0]}:{of[1]}"
    return of[:_MAX_TEXT] if isinstance(of, str) and of.isprintable() else ""


def _busy_worker(frame: FrameType | None) -> str:
    """Return process and call of a worker that works, rather of one that is stopped, by a tab, if
    the frame waits for a loader (for its queue, or in one for a tensor's descriptor) or a pool of
    multiprocessing's. Where all of a pool wait for work: that they do."""
    for _ in range(_LOADER_DEPTH):
        if frame is None or frame.f_code.co_name == "_try_get_data":
            break
        if frame.f_code.co_filename.endswith(_POOL):
            return _of_pool(getattr(frame.f_locals.get("self"), "_pool", None))
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.endswith(_LOADER):
        return ""
    return _working(_children(), ("poll", "child"))


def _children() -> list[str]:
    return read_text(f"/proc/self/task/{os.getpid()}/children").split()[:_MAX_CHILDREN]


def _of_pool(pool: object) -> str:
    """``pool``: what a result of multiprocessing's belongs to. One of its workers reads the pipe of
    tasks, the others wait to."""
    queue = getattr(getattr(pool, "_inqueue", None), "_reader", None)
    try:
        pids = [str(one.pid) for one in list(getattr(pool, "_pool", ()))[:_MAX_CHILDREN]]
        link = os.readlink(f"/proc/self/fd/{queue.fileno()}") if queue is not None else ""
    except (AttributeError, ValueError):  # it is closed
        return ""
    reads = [pid for pid in pids if link and _reads(pid, link)]
    others = [pid for pid in pids if pid not in reads]
    return _working(others, ()) or ("\tidle" if reads else "")


def _reads(pid: str, link: str) -> bool:
    words = read_text(f"/proc/{pid}/syscall").split()
    with contextlib.suppress(OSError):
        if words[:1] and words[0] in _READS:
            return os.readlink(f"/proc/{pid}/fd/{int(words[1], 16)}") == link
    return False


def _working(pids: list[str], idle: tuple[str, ...]) -> str:
    """Return process and call of the first that stands in none of these calls, nor in a lock that
    processes share."""
    for pid in pids:
        if read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1] == ["T"]:
            return f"{pid}\tstopped"
    for pid in pids:
        words = read_text(f"/proc/{pid}/syscall").split()
        if words and not words[0].startswith("-"):
            known = _kind(words) or "another call" if words[0].isdigit() else "running"
            shared = known == "lock" and not int(words[2], 16) & _PRIVATE
            if known not in idle and not shared:
                return f"{pid}\t{known}"
    return ""


def _is_open_in(pid: str, path: str) -> bool:
    with contextlib.suppress(OSError):
        here = f"/proc/{pid}/fd"
        return any(os.readlink(f"{here}/{fd}") == path for fd in os.listdir(here))
    return False


def _holder(pid: int) -> int | None:
    """Return the process with the lock that ``pid`` waits for: /proc/locks lists waiting processes
    behind it, with an arrow."""
    with open("/proc/locks", encoding="ascii", errors="replace") as file:
        rows = [line.split() for line in file]
    for row in rows:
        if row[1:2] == ["->"] and row[5:6] == [str(pid)]:
            held = (other for other in rows if other[0] == row[0] and other[1:2] != ["->"])
            return next((int(other[4]) for other in held), None)
    return None
