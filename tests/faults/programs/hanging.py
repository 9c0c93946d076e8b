"""Ranks that hang, fail, or only look like it: ``-m tests.faults.programs.hanging KIND FOLDER``.

After a restart they are healthy.
"""

from __future__ import annotations

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

AT = 30
"""The step in which it happens."""
COMPUTES_S = 6.0


def happens(kind: str, rank: int, folder: str) -> None:
    """What is wrong, or unusual, in step AT."""
    if kind == "sleeper" and rank == 1:
        time.sleep(1000)
    if kind == "missing" and rank == 2:
        dist.recv(torch.ones(3), 0)
    if kind == "p2p":
        dist.recv(torch.ones(3), rank - 1 if rank else 3)
    if kind == "long" and rank == 1:
        until = time.monotonic() + COMPUTES_S
        while time.monotonic() < until:
            torch.randn(200, 200) @ torch.randn(200, 200)
    if kind == "pause":
        if rank == 0:
            torch.save(torch.ones(1000), folder + "/checkpoint")
            time.sleep(2)
        dist.barrier()


def main(kind: str, folder: str) -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=200))
    rank, first = dist.get_rank(), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    for step in range(60):
        time.sleep(0.01)
        if step == AT and first:
            happens(kind, rank, folder)
        if kind == "raises" and rank == 1 and step == AT:
            raise ValueError("bad batch")
        dist.all_reduce(torch.ones(5))
    go = torch.zeros(1)
    while kind == "held" and not go.item():
        go += os.path.exists(folder + "/go")
        dist.all_reduce(go)
    sys.stdout.write(f"done {rank}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
