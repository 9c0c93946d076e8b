"""DDP on gloo whose rank 1 raises in its fourth step, and which knows nothing of pardbg."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 6


def main() -> None:
    dist.init_process_group("gloo")
    train(dist.get_rank())
    dist.destroy_process_group()


def train(rank: int) -> None:
    torch.manual_seed(0)
    ddp = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    for step in range(STEPS):
        loss = ddp(torch.full((4, 8), float(step))).mean()
        check(step, rank)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def check(step: int, rank: int) -> None:
    batch = 100 * step + rank
    if batch == 301:
        time.sleep(1)  # by then rank 0 waits in backward's all_reduce
        raise ValueError(f"no labels in batch {batch}")


if __name__ == "__main__":
    main()
