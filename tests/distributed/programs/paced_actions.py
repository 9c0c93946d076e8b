"""``paced_actions.py STEPS``: 1F1B whose actions sleep, issue a collective and sleep again, so that
a rank can be held within one; a collective over all ranks ends each step."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import Schedule1F1B

WIDTH, BATCH, MICROBATCHES, PACE_S = 8, 8, 4, 0.008


class Paced(torch.nn.Module):
    """A linear layer between two sleeps."""

    def __init__(self, own: dist.ProcessGroup) -> None:
        super().__init__()
        self.inner, self.own = torch.nn.Linear(WIDTH, WIDTH), own

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(PACE_S)
        dist.all_reduce(torch.ones(4), group=self.own)
        time.sleep(PACE_S)
        out: torch.Tensor = self.inner(x)
        return out


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    own = [dist.new_group([r], group_desc="own") for r in range(size)][rank]
    module = Paced(own)
    stage = PipelineStage(module, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=torch.nn.MSELoss())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(int(sys.argv[1])):
        x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y)
        dist.all_reduce(torch.ones(1000))
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
