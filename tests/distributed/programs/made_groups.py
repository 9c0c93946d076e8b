"""Groups made by hand, as torchft makes them: rank 1 leaves, the others make a new one, and rank 3
sleeps before its last op there. ``pairs``: two groups of a size at once, and one with another
order. At the end ranks wait for the file END."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import PrefixStore, ProcessGroup, ProcessGroupGloo, TCPStore

STEPS = 8
KEPT: list[ProcessGroup] = []
"""Until all members are done: a group that goes closes its connections."""


def made(store: TCPStore, name: str, members: list[int], rank: int) -> ProcessGroup:
    own = PrefixStore(name, store), members.index(rank), len(members)
    group = ProcessGroup(*own)
    group._set_default_backend(ProcessGroup.BackendType.GLOO)
    backend = ProcessGroupGloo(*own, timedelta(seconds=60))
    backend._set_sequence_number_for_group()
    group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, backend)
    KEPT.append(group)
    return group


def reduce(group: ProcessGroup) -> None:
    for _ in range(STEPS):
        group.allreduce([torch.ones(8)]).wait()


def shrinks(store: TCPStore, rank: int) -> None:
    reduce(made(store, "world", [0, 1, 2, 3], rank))
    if rank == 1:
        return
    left = made(store, "left", [0, 2, 3], rank)
    reduce(left)
    if rank != 3:
        left.allreduce([torch.ones(8)]).wait()


def pairs(store: TCPStore, rank: int) -> None:
    pair = [0, 1] if rank < 2 else [3, 2]
    group = made(store, f"pair {pair[0]}", pair, rank)
    reduce(group)
    if rank == pair[0]:
        group.send([torch.ones(8)], 1, 7).wait()
    else:
        group.recv([torch.ones(8)], 0, 7).wait()
    if rank == 2:
        return
    three = made(store, "three", [3, 1, 0], rank)
    three.alltoall_base(torch.ones(9), torch.ones(9), [3, 3, 3], [3, 3, 3]).wait()
    three.broadcast([torch.ones(8)]).wait()


def main() -> None:
    rank, end = int(os.environ["RANK"]), Path(os.environ["END"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    {"shrinks": shrinks, "pairs": pairs}[sys.argv[1]](TCPStore(*address, is_master=False), rank)
    while not end.exists():
        time.sleep(0.05)


if __name__ == "__main__":
    main()
