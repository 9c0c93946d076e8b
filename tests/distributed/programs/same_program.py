"""A small training in several layouts, with faults: ``same_program LAYOUT [FAULT]``. Whatever the
layout, the ranks together see the same rows."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

STEPS, ROWS = 3, 12


def laid_out(model: nn.Sequential, layout: str, size: int) -> Any:
    if layout == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if layout == "tp":
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(model, init_device_mesh("cpu", (size,)), plan)
    if layout == "fsdp":
        for layer in (model[0], model[2]):
            fully_shard(layer)
        fully_shard(model)
    return model


def main() -> None:
    layout, fault = sys.argv[1], (*sys.argv[2:], "")[0]
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1 if fault != "other-start" else 2)
    layers = nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 16)
    model = laid_out(nn.Sequential(*layers), layout, size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    drawn = torch.Generator().manual_seed(7 if fault != "other-data" else 8)
    for _ in range(STEPS):
        x, y = torch.randn(ROWS, 16, generator=drawn), torch.randn(ROWS, 16, generator=drawn)
        if layout in ("ddp", "fsdp"):
            x, y = x[rank::size], y[rank::size]
        loss = (model(x) - y).square().mean()
        loss.backward()
        if fault == "twice":
            for p in model.parameters():
                p.grad.mul_(2)
        if fault == "one-rank" and rank == 1:
            next(model.parameters()).grad.mul_(1.5)
        optimizer.step()
        optimizer.zero_grad()
        sys.stdout.write(f"{rank} {loss.item().hex()}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
