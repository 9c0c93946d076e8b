"""Forks the ranks: one process that has imported torch and what the program imports.

    python -m pardbg.rehearse.server PLAN

PLAN is a JSON file (``Plan``). What becomes of the ranks is said on stdout, a line each:
``RANK PID CODE CPU_MS``. Ctrl-C and the end of stdin end it and its ranks.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

MAX_ALIVE: Final = 12
"""Ranks at a time, most of them waiting for a message, before no further one is begun unasked."""
HOST: Final = "rehearsal"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is rehearsed."""

    folder: str
    """Run directory: run.json, ``rings`` and ``mail``."""
    program: tuple[str, ...]
    """Script and its arguments, or ``-m``, module and arguments."""
    world: int
    ranks: tuple[int, ...]
    per_node: int
    steps: int
    """End each rank after so many; 0: when it ends itself."""
    jobs: int

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_plan(path: str) -> Plan:
    data = json.loads(Path(path).read_text(encoding="utf-8"))
    return Plan(**{**data, "program": tuple(data["program"]), "ranks": tuple(data["ranks"])})


@dataclass(slots=True)
class Server:
    """The ranks that run."""

    plan: Plan
    alone: Any
    out: int
    """Pipe on which ranks say that they wait."""
    inbox: int
    pending: dict[int, None] = field(default_factory=dict)
    alive: dict[int, tuple[int, int]] = field(default_factory=dict)
    """pidfd -> (rank, pid)"""
    waiting: dict[int, str] = field(default_factory=dict)
    """rank -> the message it waits for"""
    begun: set[int] = field(default_factory=set)

    @property
    def mail(self) -> Path:
        return Path(self.plan.folder, "mail")

    def run(self, ranks: Sequence[int]) -> None:
        """Run these ranks, and those they wait for, to their ends."""
        self.pending.update(dict.fromkeys(ranks))
        while self.pending or self.alive:
            while self.pending and self._may_begin():
                self.begin(next(iter(self.pending)))
            ready, _, _ = select.select([0, self.inbox, *self.alive], [], [], 1.0)
            for fd in ready:
                if fd == 0 and not os.read(0, 1):
                    self.end_all()
                elif fd == self.inbox:
                    self._hear()
                elif fd in self.alive:
                    self._reap(fd)
            self._untie()

    def _may_begin(self) -> bool:
        busy = len(self.alive) - len(self.waiting)
        return busy == 0 or (busy < self.plan.jobs and len(self.alive) < MAX_ALIVE)

    def begin(self, rank: int) -> None:
        self.pending.pop(rank, None)
        self.begun.add(rank)
        pid = os.fork()
        if pid == 0:
            _be_rank(self, rank)
        self.alive[os.pidfd_open(pid)] = rank, pid

    def _hear(self) -> None:
        for line in os.read(self.inbox, 1 << 16).decode().splitlines():
            rank, source, name = line.split()
            if name == "-":
                self.waiting.pop(int(rank), None)
                continue
            self.waiting[int(rank)] = name
            self.learn()
            if int(source) not in self.plan.ranks:
                (self.mail / f"none.{rank}").touch()
            elif int(source) not in self.begun:
                self.begin(int(source))

    def learn(self) -> None:
        """Import what the first rank has imported, by its first wait and by its end."""
        said = Path(self.plan.folder, "imports")
        if said.exists():
            for name in said.read_text(encoding="utf-8").split():
                with suppress(Exception):
                    importlib.import_module(name)
            said.rename(said.with_suffix(".learnt"))
            gc.collect()
            gc.freeze()  # what is here now is not touched, and so not copied, by any rank

    def _reap(self, fd: int) -> None:
        rank, pid = self.alive.pop(fd)
        os.close(fd)
        _, status, usage = os.wait4(pid, 0)
        self.waiting.pop(rank, None)
        self.learn()
        (self.mail / f"ended.{rank}").touch()
        cpu_ms = int((usage.ru_utime + usage.ru_stime) * 1e3)
        code = os.waitstatus_to_exitcode(status)
        sys.stdout.write(f"{rank} {pid} {code} {cpu_ms}\n")
        sys.stdout.flush()

    def _untie(self) -> None:
        """All wait for each other: let them go on without."""
        ranks = {rank for rank, _ in self.alive.values()}
        stuck = ranks and ranks <= self.waiting.keys()
        if stuck and not any((self.mail / name).exists() for name in self.waiting.values()):
            for rank in ranks:
                (self.mail / f"none.{rank}").touch()

    def end_all(self) -> NoReturn:
        for _, pid in self.alive.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os._exit(130)


def _be_rank(server: Server, rank: int) -> NoReturn:
    """In the child: run the program, leave what it did, end."""
    from pardbg.rehearse.alone import Mail

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

    def say(text: str) -> None:
        if rank == plan.ranks[0] and not (folder / "imports.learnt").exists():
            _say_imports(folder / "imports")
        os.write(server.out, f"{text}\n".encode())

    server.alone.begin(rank, plan.world, plan.steps, Mail(folder / "mail", rank, say))
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
    """Where the program's own code raised, and what."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "site-packages" not in f.filename and "runpy" not in f.filename
           and "/rehearse/" not in f.filename and "/torch/" not in f.filename]  # fmt: skip
    at = (own or frames)[-1] if frames else None
    where = "" if at is None else f"{Path(at.filename).name}:{at.lineno}: "
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    path.write_text(f"{where}{type(error).__name__}: {first}", encoding="utf-8")


def _say_imports(path: Path) -> None:
    """Modules of libraries that the program has imported."""
    names = [name for name, module in list(sys.modules.items())
             if "site-packages" in (getattr(module, "__file__", None) or "")
             or "/torch/" in (getattr(module, "__file__", None) or "")]  # fmt: skip
    path.write_text("\n".join(names), encoding="utf-8")


def main() -> None:
    from pardbg.rehearse.alone import prepare

    plan = read_plan(sys.argv[1])
    inbox, out = os.pipe()
    server = Server(plan, prepare(), out, inbox)
    first, *others = plan.ranks
    server.run([first])
    server.learn()
    server.run([rank for rank in others if rank not in server.begun])


if __name__ == "__main__":
    main()
