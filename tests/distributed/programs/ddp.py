"""Two ranks of DDP on gloo that know nothing of pardbg. Prints exact losses."""

from __future__ import annotations

import gc
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STEPS = 4


def main() -> None:
    dist.init_process_group("gloo")
    train(dist.get_rank())
    # A DDP reducer that outlives its group can abort the process, with pardbg and without.
    gc.collect()
    if os.environ.get("DESTROY", "1") == "1":
        dist.destroy_process_group()


def train(rank: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
    )  # 16*32 + 32 + 32 + 1 = 577 parameters, 2308 bytes
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    data = TensorDataset(torch.randn(8 * STEPS, 16, generator=generator), torch.randn(8 * STEPS, 1))
    for x, y in DataLoader(data, batch_size=8):
        loss = torch.nn.functional.mse_loss(ddp(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        sys.stdout.write(f"[rank{rank}] loss {loss.item().hex()}\n")


if __name__ == "__main__":
    main()
