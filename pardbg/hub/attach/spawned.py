"""Ranks that a program starts by itself (torch.multiprocessing.spawn, a loop of a shell's): which
one each is, their environment does not say.

They are known by their threads, which a process has that is in a process group; and so is that what
started them is none, also where its environment has RANK (of a node).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

THREADS: Final = "pt_gloo", "gloo_", "pt_nccl"
"""Beginnings of names that c10d gives its threads."""


@dataclass(frozen=True, slots=True)
class Spawned:
    """A process in a group whose number is what its launcher's says and its place among those that
    this one started: torch.multiprocessing.spawn starts them by their numbers."""

    process: psutil.Process
    rank: int
    world_size: int
    guessed: bool
    """By the order of their start; else by the environment."""
    launcher: int


def spawned(processes: Iterable[psutil.Process]) -> tuple[list[Spawned], set[int]]:
    """Return (those of these processes that are ranks so, pids of all that started ranks)."""
    launchers: dict[int, list[psutil.Process]] = defaultdict(list)
    for one in processes:
        with suppress(psutil.Error):
            parent = one.ppid()
            if in_group(one.pid) and not in_group(parent):
                launchers[parent].append(one)
    return [one for pid, of in launchers.items() for one in _numbered(pid, of)], {*launchers}


def _numbered(launcher: int, wanted: list[psutil.Process]) -> Iterable[Spawned]:
    try:
        parent = psutil.Process(launcher)
        all_ = [one for one in parent.children() if in_group(one.pid)]
        all_.sort(key=lambda one: one.create_time())
        node, nodes = number(parent, "RANK"), number(wanted[0], "WORLD_SIZE")
        own = any(number(one, "RANK") != node for one in all_)
    except psutil.Error:
        return
    many = len(all_)
    if own or (many < 2 and node is None):
        return  # their environment has their numbers, or it is a program with one process
    for at, one in enumerate(all_):
        if one in wanted:
            rank = at if node is None else node * many + at
            yield Spawned(one, rank, many * (nodes or 1), many > 1, launcher)


def in_group(pid: int) -> bool:
    """Return whether a process has threads of a process group."""
    try:
        names = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
    except OSError:
        return False
    return any(name.startswith(THREADS) for name in names)


def number(process: psutil.Process, name: str) -> int | None:
    """Return a whole number of a process's environment."""
    value = process.environ().get(name, "")
    return int(value) if value.isdecimal() else None
