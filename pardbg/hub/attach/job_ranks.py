"""Ranks of jobs on this machine, found by their environment and their mapped libraries.

Ranks that a program starts by itself (torch.multiprocessing.spawn, a loop of a shell's), whose
numbers are not in their environment, are known by the threads of a process group; their launcher is
then not a rank, even with RANK (of a node) in its environment."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from pardbg.errors import UserError
from pardbg.hub.ranks.processes import maps
from pardbg.hub.removal import RINGS_DIR
from pardbg.hub.run.config import roots, shm_root
from pardbg_agent import wire

SLURM: Final = "SLURM_JOB_ID"
JOB_VARIABLES: Final = (
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", SLURM, "SLURM_STEP_ID",
)  # fmt: skip
"""Variables that ranks of one job share."""


@dataclass(frozen=True, slots=True)
class JobRank:
    """Process with a rank and torch loaded."""

    pid: int
    rank: int
    world_size: int
    job: tuple[str, ...]
    """Values of JOB_VARIABLES in the process's environment."""
    command: str
    watched: bool
    """Whether the process was started under pardbg."""
    guessed: bool = False
    """Whether the rank is guessed from the position among one program's processes: ``spawned``."""

    @property
    def slurm(self) -> str:
        """Return the Slurm job of the rank; empty: none."""
        return self.job[JOB_VARIABLES.index(SLURM)]


def find(
    pids: Sequence[int] = (), launcher: int | None = None, several: bool = False, slurm: str = ""
) -> list[list[JobRank]]:
    """Return the ranks of each job, by rank: among these processes, those below a launcher, of a
    Slurm job, or of all of this user here: one job, unless ``several``. Raises UserError."""
    processes = _chosen(pids, launcher)
    own, launchers = spawned(processes)
    every = {one.pid: rank for one in processes if (rank := _rank_of(one)) is not None}
    every |= {one.process.pid: rank for one in own if (rank := _of_program(one)) is not None}
    found = _without_children(
        [r for pid, r in every.items() if slurm in ("", r.slurm) and pid not in launchers]
    )
    if not found:
        raise UserError(_nobody_of_slurm(slurm) if slurm else _nobody(pids, launcher))
    jobs = defaultdict(list)
    for rank in found:
        jobs[rank.job].append(rank)
    if len(jobs) > 1 and not several:
        shown = (f"pid {ranks[0].pid}: {ranks[0].command[:60]}" for ranks in jobs.values())
        listed = "; ".join(shown)
        raise UserError(f"{len(jobs)} jobs run here ({listed}): name the pids of one, or its "
                        "launcher with --launcher; --user shows all")  # fmt: skip
    return [sorted(job, key=lambda one: (one.rank, one.pid)) for job in jobs.values()]


def _chosen(pids: Sequence[int], launcher: int | None) -> Sequence[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        if launcher is not None:
            return list(psutil.Process(launcher).children(recursive=True))
        if pids:
            return [psutil.Process(pid) for pid in pids]
        uid = os.geteuid()
        return [one for one in psutil.process_iter() if _uid(one) == uid]
    return []


def _uid(process: psutil.Process) -> int:
    try:
        return int(process.uids().effective)
    except psutil.Error:
        return -1


def _rank_of(process: psutil.Process) -> JobRank | None:
    """Return a process's JobRank; None without a rank in its environment or torch in memory."""
    try:
        environ: Mapping[str, str] = process.environ()
        rank, world = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
        if not (rank.isdecimal() and world.isdecimal() and maps(process.pid, TORCH)):
            return None
        job = tuple(environ.get(name, "") for name in JOB_VARIABLES)
        command = " ".join(process.cmdline())
    except (psutil.Error, OSError):
        return None
    return JobRank(process.pid, int(rank), int(world), job, command, wire.ENV_RUN in environ)


def _of_program(one: Spawned) -> JobRank | None:
    try:
        environ = one.process.environ()
        command = " ".join(psutil.Process(one.launcher).cmdline())
    except (psutil.Error, OSError):
        return None
    job = tuple(environ.get(name, "") for name in JOB_VARIABLES)
    job = job if any(job) else (*job, str(one.launcher))
    watched = wire.ENV_RUN in environ
    return JobRank(one.process.pid, one.rank, one.world_size, job, command, watched, one.guessed)


def _without_children(ranks: Sequence[JobRank]) -> list[JobRank]:
    """Return the ranks without their children: workers of loaders and compilers inherit RANK."""
    pids = {one.pid for one in ranks}
    return [one for one in ranks if pids.isdisjoint(_parents(one.pid))]


def _parents(pid: int) -> set[int]:
    try:
        return {parent.pid for parent in psutil.Process(pid).parents()}
    except psutil.Error:
        return set()


def _nobody(pids: Sequence[int], launcher: int | None) -> str:
    which = "this user has no process"
    if launcher is not None:
        which = f"no process below {launcher} is one"
    elif pids:
        which = f"none of {', '.join(map(str, pids))} is a process"
    return f"no rank found: {which} with RANK and WORLD_SIZE in its environment, and torch"


def refuse_part(ranks: Sequence[JobRank]) -> None:
    """Raise UserError if these are not all ranks of their job, or are watched already."""
    if any(one.guessed for one in ranks):
        raise UserError("which rank each process is its environment does not say, so the agent"
                        " enters none: start the job with `pardbg watch --`")  # fmt: skip
    world, here = ranks[0].world_size, {one.rank for one in ranks}
    names = {run for one in ranks if (run := entered_by(one.pid))}
    if ranks[0].watched or names:
        watch = " ".join(["pardbg watch", *sorted(names)])
        raise UserError(f"this job runs under pardbg already: `{watch}`")
    if any(os.stat(f"/proc/{one.pid}").st_uid != os.geteuid() for one in ranks):
        raise UserError("the job is another user's: run this as that user")
    if len(here) != len(ranks):
        raise UserError("two processes have one rank: name the pids of one job")
    if missing := sorted({*range(world)} - here):
        raise UserError(f"{len(missing)} of {world} ranks are not on this machine, or not named: "
                        "the agent enters all ranks of a job or none")  # fmt: skip


def entered_by(pid: int) -> str:
    """Return the run whose agent is in a process (by its ring); empty: none."""
    found = [*shm_root().glob(f"*/*.{pid}.ring")]
    found += [one.parent for root in roots() for one in root.glob(f"*/{RINGS_DIR}/*.{pid}.ring")]
    return found[0].parent.name if found else ""


def on_all_nodes(slurm: str) -> str:
    """Return the command that inspects a Slurm job on each of its nodes."""
    return f"srun --jobid={slurm} --overlap --ntasks-per-node=1 -l pardbg attach --slurm {slurm}"


def _nobody_of_slurm(slurm: str) -> str:
    where = "" if shutil.which("srun") else ", where srun is (there is none here)"
    return f"no rank of Slurm job {slurm} on this machine: `{on_all_nodes(slurm)}`{where}"


def why_no_stack(error: str) -> str:
    """Return the setting that forbids reading a stack, and the remedy."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    try:
        level = int(scope.read_text())
    except (OSError, ValueError):
        level = 0
    if os.geteuid() != 0 and level > 0:
        return f"kernel.yama.ptrace_scope={level} forbids it: run as root, or set it to 0"
    if "ermission" in error:
        return (
            "not permitted: a container needs --cap-add SYS_PTRACE, another user's job needs root"
        )
    return error


TORCH: Final = "libtorch"
"""Part of the name of a library mapped by processes that use torch."""
THREADS: Final = "pt_gloo", "gloo_", "pt_nccl"
"""Prefixes of the names of c10d's threads."""


@dataclass(frozen=True, slots=True)
class Spawned:
    """Process in a group whose rank follows from its launcher's and its position among that one's
    children: torch.multiprocessing.spawn starts them by their numbers."""

    process: psutil.Process
    rank: int
    world_size: int
    guessed: bool
    """Whether the rank follows from the order of their start; else it is in the environment."""
    launcher: int


def spawned(processes: Iterable[psutil.Process]) -> tuple[list[Spawned], set[int]]:
    """Return (spawned ranks among these processes, pids of all that started ranks)."""
    chosen, programs = list(processes), set()
    for one in chosen:
        with contextlib.suppress(psutil.Error):
            if in_group(one.pid) and not in_group(one.ppid()):
                programs.add((one.ppid(), *one.cmdline()[:2]))
    below = (rank for launcher, *words in programs for rank in _numbered(launcher, words))
    return [rank for rank in below if rank.process in chosen], {pid for pid, *_ in programs}


def _numbered(launcher: int, words: list[str]) -> Iterator[Spawned]:
    """Yield the ranks that ``launcher`` started with these first words, even before their group."""
    try:
        parent = psutil.Process(launcher)
        alike = (one for one in parent.children() if one.cmdline()[:2] == words)
        all_ = [one for one in alike if maps(one.pid, TORCH)]
        all_.sort(key=lambda one: one.create_time())
        node, nodes = number(parent, "RANK"), number(parent, "WORLD_SIZE")
        own = any(number(one, "RANK") != node for one in all_)
    except psutil.Error:
        return
    many = len(all_)
    if own or (many < 2 and node is None):
        return  # their environment has their numbers, or it is a program with one process
    for at, one in enumerate(all_):
        first, world = (0, many) if node is None else (node * many, many * (nodes or 1))
        yield Spawned(one, first + at, world, many > 1, launcher)


def in_group(pid: int) -> bool:
    """Return whether a process has threads of a process group."""
    try:
        names = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
    except OSError:
        return False
    return any(name.startswith(THREADS) for name in names)


def number(process: psutil.Process, name: str) -> int | None:
    """Return a whole number from a process's environment, or None."""
    value = process.environ().get(name, "")
    return int(value) if value.isdecimal() else None
