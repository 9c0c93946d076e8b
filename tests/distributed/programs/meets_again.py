"""Four ranks that train, and three of them again in the same processes, without rank 1: the last
one sleeps in its training then, up to the file END. torchrun … meets_again.py"""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

OUT = 1
"""The rank that is left out."""


def meet(rank: int, world: int, path: str) -> None:
    dist.init_process_group(
        "gloo", store=dist.FileStore(path, world), rank=rank, world_size=world,
        timeout=timedelta(seconds=120),
    )  # fmt: skip


def train(steps: int, sleeps: bool = False) -> None:
    model = DDP(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).pow(2).mean().backward()
        optimizer.step()
        time.sleep(0.02)
        while sleeps and step == steps // 2 and not os.path.exists(os.environ["END"]):
            time.sleep(0.05)


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    meet(rank, world, os.environ["END"] + ".first")
    train(20)
    dist.destroy_process_group()
    while rank == OUT and not os.path.exists(os.environ["END"]):
        time.sleep(0.05)
    if rank != OUT:
        new = rank - (rank > OUT)
        meet(new, world - 1, os.environ["END"] + ".second")
        train(20, sleeps=new == world - 2)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
