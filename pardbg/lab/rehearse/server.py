"""Server that forks the ranks: a process that has imported torch and the program's libraries.

Started by ``own_process`` with PLAN, a JSON file (``Plan``). Writes the end of each rank to stdout
as a line: ``RANK PID CODE CPU_MS``. Ctrl-C and the end of stdin end the server and its ranks.
"""

from __future__ import annotations

import ast
import ctypes
import gc
import importlib.util
import json
import os
import re
import resource
import runpy
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import msgpack

MAX_ALIVE: Final = 12
"""Number of live ranks, mostly waiting for a message, from which on no unasked rank begins."""
HOST: Final = "rehearsal"
TO_ONE: Final = "p2p."
"""Prefix of the names of messages that a single rank takes."""
MAX_SAID: Final = 1 << 18
MANY: Final = 64
"""Number of ranks from which on making forks cheap pays off."""
HUGE: Final = 2 << 20
COLLAPSE: Final = 25
"""Value of Linux's MADV_COLLAPSE."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The program to rehearse, with the ranks to run."""

    folder: str
    """Run directory: run.json and ``rings``."""
    program: tuple[str, ...]
    """Script with its arguments, or ``-m``, module and arguments."""
    world: int
    ranks: tuple[int, ...]
    per_node: int
    steps: int
    """Number of steps after which each rank is ended; 0: it runs to its own end."""
    jobs: int

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_plan(path: str) -> Plan:
    """Return the plan that was written to a file."""
    data = json.loads(Path(path).read_text(encoding="utf-8"))
    return Plan(**{**data, "program": tuple(data["program"]), "ranks": tuple(data["ranks"])})


@dataclass(slots=True)
class Child:
    """A running rank."""

    rank: int
    pid: int
    pidfd: int
    line: socket.socket
    """Socket for the rank's posts and requests of messages: (name, sender or -1, data)."""
    wants: str = ""
    """Name of the message that the rank waits for; empty: none."""
    source: int = -1


@dataclass(slots=True)
class Server:
    """The running ranks, and their messages."""

    plan: Plan
    alone: Any
    pending: dict[int, None] = field(default_factory=dict)
    alive: dict[int, Child] = field(default_factory=dict)
    """Rank -> its running process."""
    begun: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    mail: dict[str, bytes] = field(default_factory=dict)
    poll: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def run(self, ranks: Sequence[int]) -> None:
        """Run these ranks, and the ranks that they wait for, to their ends."""
        self.pending.update(dict.fromkeys(ranks))
        while self.pending or self.alive:
            while self.pending and self._may_begin():
                self.begin(next(iter(self.pending)))
            for key, _ in self.poll.select(1.0):
                if key.data is None:
                    self.end_all()
                elif key.fd == key.data.pidfd:
                    self._reap(key.data)
                elif key.data.rank in self.alive:
                    self._hear(key.data)
            if not self.pending and all(child.wants for child in self.alive.values()):
                for child in self.alive.values():  # they wait for each other: go on without
                    self._answer(child)

    def _may_begin(self) -> bool:
        busy = sum(not child.wants for child in self.alive.values())
        return busy == 0 or (busy < self.plan.jobs and len(self.alive) < MAX_ALIVE)

    def begin(self, rank: int) -> None:
        self.pending.pop(rank, None)
        self.begun.add(rank)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            ours.close()
            _be_rank(self, rank, theirs)
        theirs.close()
        child = self.alive[rank] = Child(rank, pid, os.pidfd_open(pid), ours)
        for fd in (child.pidfd, ours.fileno()):
            self.poll.register(fd, selectors.EVENT_READ, child)

    def _hear(self, child: Child) -> bool:
        """Take one message of a rank; return False if there is none."""
        try:
            said = child.line.recv(MAX_SAID, socket.MSG_DONTWAIT)
        except OSError:
            return False
        if not said:
            self._forget(child.line.fileno())
            return False
        name, source, data = msgpack.unpackb(said)
        if source < 0:
            self.mail[name] = data
            for other in self.alive.values():
                if other.wants == name:
                    self._answer(other)
            return True
        child.wants, child.source = name, source
        self.learn()
        if name in self.mail or source in self.ended:
            self._answer(child)
        elif source not in self.begun:  # of the plan's ranks, or one that these need
            self.begin(source)
        return True

    def _answer(self, child: Child) -> None:
        """Send a rank its awaited message; empty data if that message will never come."""
        with suppress(OSError):  # it has just been killed
            child.line.send(self.mail.get(child.wants, b""))
        if child.wants.startswith(TO_ONE):
            self.mail.pop(child.wants, None)
        child.wants = ""

    def learn(self) -> None:
        """Import the libraries that the first rank has imported, by its first wait and its end."""
        said = Path(self.plan.folder, "imports")
        if said.exists():
            learn(said.read_text(encoding="utf-8").split())
            said.rename(said.with_suffix(".learnt"))

    def _reap(self, child: Child) -> None:
        while self._hear(child):
            pass
        del self.alive[child.rank]
        self.ended.add(child.rank)
        self._forget(child.pidfd)
        self._forget(child.line.fileno())
        os.close(child.pidfd)
        child.line.close()
        _, status, usage = os.wait4(child.pid, 0)
        for other in self.alive.values():
            if other.wants and other.source == child.rank:
                self._answer(other)
        self.learn()
        cpu_ms = int((usage.ru_utime + usage.ru_stime) * 1e3)
        code = os.waitstatus_to_exitcode(status)
        sys.stdout.write(f"{child.rank} {child.pid} {code} {cpu_ms}\n")
        sys.stdout.flush()

    def _forget(self, fd: int) -> None:
        with suppress(KeyError):
            self.poll.unregister(fd)

    def end_all(self) -> NoReturn:
        for child in self.alive.values():
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
        os._exit(130)


def learn(names: Sequence[str]) -> None:
    """Import libraries here, once for all ranks."""
    for name in names:
        with suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is here now is not touched, and so not copied, by any rank


def on_huge_pages() -> None:
    """Move this process's memory to huge pages: a fork then copies a page table of a few hundred
    entries, not of fifty thousand. Memory that cannot be moved stays as it is."""
    with suppress(OSError, ValueError, AttributeError):
        advise = ctypes.CDLL(None).madvise
        for said in re.split(r"\n(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text()):
            span, rights, _, _, inode, *_ = said.split()
            first, last = (int(end, 16) for end in span.split("-"))
            held = int(said.partition("\nRss:")[2].split()[0]) << 10
            if rights == "rw-p" and inode == "0" and 2 * held > last - first:
                first, last = -(-first // HUGE) * HUGE, last // HUGE * HUGE
                if first < last:
                    advise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), COLLAPSE)


def imported_by(program: Sequence[str]) -> list[str]:
    """Return the libraries named in a script's import lines."""
    with suppress(Exception):
        found = importlib.util.find_spec(program[1]) if program[0] == "-m" else None
        source = Path((found and found.origin) or program[0]).read_text(encoding="utf-8")
        lines = [node for node in ast.parse(source).body
                 if isinstance(node, ast.Import | ast.ImportFrom)]  # fmt: skip
        names = {alias.name for node in lines if isinstance(node, ast.Import)
                 for alias in node.names}  # fmt: skip
        names |= {node.module or "" for node in lines
                  if isinstance(node, ast.ImportFrom) and not node.level}  # fmt: skip
        return sorted(name for name in names if _is_library(name))
    return []


def _is_library(name: str) -> bool:
    top = importlib.util.find_spec(name.partition(".")[0]) if name else None
    origin = (top and top.origin) or ""
    return "site-packages" in origin or "/torch/" in origin


def _be_rank(server: Server, rank: int, line: socket.socket) -> NoReturn:
    """Run the program in the forked child, write its trace, and end."""
    from pardbg.lab.rehearse.alone import Mail

    gc.enable()
    plan, code = server.plan, 1
    folder = Path(plan.folder)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(plan.world), LOCAL_RANK=str(rank % plan.per_node),
        LOCAL_WORLD_SIZE=str(plan.per_node), GROUP_RANK=str(rank // plan.per_node),
        MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", TORCHELASTIC_RESTART_COUNT="0",
        PARDBG_HOST=HOST,
    )  # fmt: skip
    for fd, name in ((1, "out"), (2, "err")):
        said = os.open(folder / f"{name}.{rank}", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(said, fd)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def end(code: int) -> NoReturn:
        server.alone.write_places(folder / f"places.{rank}")
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)

    def before_wait() -> None:
        if rank == plan.ranks[0] and not (folder / "imports.learnt").exists():
            _say_imports(folder / "imports")

    server.alone.begin(rank, plan.world, plan.steps, Mail(line, before_wait))
    server.alone.end = end
    try:
        _run(plan.program)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:  # noqa: BLE001 - the program's own
        sys.excepthook(type(error), error, error.__traceback__)
        _say_place(folder / f"why.{rank}", error)
    if rank == plan.ranks[0]:
        _say_imports(folder / "imports")
    end(code)


def _run(program: Sequence[str]) -> None:
    if program[0] == "-m":
        sys.argv = list(program[1:])
        sys.path.insert(0, os.getcwd())
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(program)
        sys.path.insert(0, str(Path(program[0]).resolve().parent))
        runpy.run_path(program[0], run_name="__main__")


def _say_place(path: Path, error: BaseException) -> None:
    """Write the place at which the program's own code raised, with the error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "site-packages" not in f.filename and "runpy" not in f.filename
           and "/rehearse/" not in f.filename and "/torch/" not in f.filename]  # fmt: skip
    at = (own or frames)[-1] if frames else None
    where = "" if at is None else f"{Path(at.filename).name}:{at.lineno}: "
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    path.write_text(f"{where}{type(error).__name__}: {first}", encoding="utf-8")


def _say_imports(path: Path) -> None:
    """Write the names of library modules, Python's and pardbg's too, that were imported."""
    names = [name for name, module in list(sys.modules.items())
             if "site-packages" in (getattr(module, "__file__", None) or "")
             or "/torch/" in (getattr(module, "__file__", None) or "")
             or name.partition(".")[0] in sys.stdlib_module_names | {"pardbg"}]  # fmt: skip
    path.write_text("\n".join(names), encoding="utf-8")


def main(argv: list[str]) -> int:
    gc.disable()  # what is imported here stays
    from pardbg.lab.rehearse.alone import prepare

    plan = read_plan(argv[0])
    named = os.environ.get("PYTHONPATH")  # the program's, now that ours is imported
    sys.path[:0] = [os.path.abspath(path) for path in named.split(os.pathsep)] if named else []
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # two for each rank that waits
    server = Server(plan, prepare())
    server.poll.register(0, selectors.EVENT_READ, None)
    learn(imported_by(plan.program))
    first, *others = plan.ranks
    server.run([first])
    if len(others) > MANY:
        on_huge_pages()
    server.run([rank for rank in others if rank not in server.begun])
    return 0
