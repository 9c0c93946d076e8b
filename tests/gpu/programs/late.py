"""``late DEVICE``: rank 1's device is busy for long, before an op that all hosts have issued."""

from __future__ import annotations

import sys
import time
import warnings

import torch
import torch.distributed as dist

from pardbg.lab.recipes.launch import share_gpus
from tests.gpu.devices import device
from tests.gpu.programs.ranks import BACKENDS

BUSY_MS = 12_000


def main() -> None:
    warnings.filterwarnings("ignore")
    there = device(sys.argv[1])
    share_gpus()
    dist.init_process_group(BACKENDS[there.name])
    tensor = torch.ones(1 << 16, device=there.name)
    for _ in range(20):
        dist.all_reduce(tensor)
        torch.accelerator.synchronize()
        time.sleep(0.05)
    if dist.get_rank() == 1:
        there.spin(BUSY_MS)
    dist.all_reduce(tensor)
    torch.accelerator.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
