"""``held DEVICE LIMIT_S STEPS``: DDP on groups that time out after so long; losses in full."""

from __future__ import annotations

import sys
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from pardbg.lab.recipes.launch import share_gpus
from tests.gpu.devices import device
from tests.gpu.programs.ranks import BACKENDS


def main() -> None:
    warnings.filterwarnings("ignore")
    there, limit_s, steps = device(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    share_gpus()
    dist.init_process_group(BACKENDS[there.name], timeout=timedelta(seconds=limit_s))
    torch.manual_seed(1)
    model = DDP(nn.Linear(64, 64).to(there.name))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 64).to(there.name)
    for step in range(steps):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.9g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
