"""Ranks that a program starts by itself (torch.multiprocessing.spawn, a loop of a shell's), whose
numbers are not in their environment.

They are known by the threads of a process group; their launcher is then not a rank, even with RANK
(of a node) in its environment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from pardbg.hub.ranks.processes import maps

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
        with suppress(psutil.Error):
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
