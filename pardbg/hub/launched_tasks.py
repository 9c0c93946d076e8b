"""Tasks of a launcher that starts one process per rank: ``mpirun -np 8 pardbg run -- python t.py``,
``srun``, ``torchrun --no-python``."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from pardbg.hub.removal import remove_meeting
from pardbg.hub.run.config import private_dir, roots
from pardbg.words import whole

_LAUNCHERS: Final = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    (
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)  # fmt: skip
"""Variables of torchrun, Open MPI, MPICH and Slurm, the innermost first: a task's number in the
job, the number of tasks, and both for this host."""

_LIFE: Final = "TORCHELASTIC_RESTART_COUNT"


@dataclass(frozen=True, slots=True)
class Tasks:
    """This process among the tasks of its launcher."""

    number: int
    total: int
    local: int
    """Number of this task on its host."""
    here: int
    """Number of tasks on this host."""
    mark: str
    """Variable that tasks have and their launcher has not."""

    def file(self, output: Path, beside: bool, alone: bool, env: Mapping[str, str]) -> Path:
        """Return the file to record to: this host's if others record ``beside`` it, with ``alone``
        this task's; and this life's, as torchrun starts its tasks again."""
        host, life = socket.gethostname().partition(".")[0], whole(env.get(_LIFE, "")) or 0
        own = [str(self.local)] if alone else []
        parts = [output.stem, *([host, *own] if beside else []), *([f"life{life}"] if life else [])]
        return output.with_stem(".".join(parts))

    def meeting_file(self) -> Path:
        """Return the file by which the tasks of one launcher on this host meet, and remove those of
        launchers that are gone. Raises OSError."""
        try:
            launcher, root = _launcher(self.mark), _root()
        except psutil.Error as error:
            raise OSError(str(error)) from None
        for path in root.glob("tasks-*.json"):
            if not psutil.pid_exists(whole(path.name.split("-")[1]) or 0):
                remove_meeting(path)
        return root / f"tasks-{launcher.pid}-{round(launcher.create_time())}.json"


def tasks_of(env: Mapping[str, str]) -> Tasks | None:
    """Return the place among a launcher's tasks; None: no launcher started several."""
    for names in _LAUNCHERS:
        number, total, local = (whole(env.get(name, "")) for name in names[:3])
        here = _here(env.get(names[3], ""), whole(env.get("SLURM_NODEID", "")) or 0)
        if number is None or total is None or local is None or here is None:
            continue
        if number < total > 1 and local < here <= total:
            return Tasks(number, total, local, here, names[2])
    return None


def _root() -> Path:
    """Return the first usable directory of this user's runs. Raises OSError."""
    *others, last = roots()
    for root in others:
        with suppress(OSError):
            private_dir(root)
            return root
    private_dir(last)
    return last


def _here(text: str, node: int) -> int | None:
    """Return this node's number of tasks, of a number or Slurm's ``8(x2),4``."""
    for part in text.split(","):
        each, _, nodes = part.removesuffix(")").partition("(x")
        node -= whole(nodes) or 1
        if node < 0 or part == text == each:
            return whole(each)
    return None


def _launcher(mark: str) -> psutil.Process:
    """Return the nearest ancestor without the variable; one of another user is no task."""
    above = psutil.Process().parents() or [psutil.Process()]
    for process in above:
        try:
            if mark not in process.environ():
                return process
        except psutil.Error:
            return process
    return above[-1]
