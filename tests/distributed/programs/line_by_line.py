"""Data parallel by hand, a line each for a debugger: ``line_by_line.py STEPS [TIMEOUT_S]``."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist


def train(steps: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    weight = torch.randn(8, 8, requires_grad=True)
    for step in range(steps):
        data = torch.full((4, 8), 0.1 * (rank + 1) + 0.01 * step)
        loss = (data @ weight).tanh().square().mean()
        loss.backward()
        grad = weight.grad
        dist.all_reduce(grad)
        mean = grad / size
        total = loss.detach().clone()
        dist.all_reduce(total)
        with torch.no_grad():
            weight -= 0.5 * mean
        weight.grad = None
        if rank == 0:
            print(f"step {step} loss {total.item():.9f}", flush=True)


if __name__ == "__main__":
    limit = timedelta(seconds=int(sys.argv[2]) if len(sys.argv) > 2 else 600)
    dist.init_process_group("gloo", timeout=limit)
    train(int(sys.argv[1]))
    dist.destroy_process_group()
