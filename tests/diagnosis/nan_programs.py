"""A pipeline that clips its gradients over all stages, of which one makes NaN in one step:
`torchrun … -m tests.diagnosis.nan_programs WHERE STAGE STEP WIDTH`. Nothing of pardbg is in it."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

STEPS, MICROBATCHES, BATCH = 60, 4, 32
_NAN = torch.tensor(float("nan"))


class Stage(nn.Module):
    """A part of a model that can spoil its output or its gradient."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.spoil = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(x))
        if self.spoil == "forward":
            h = h / torch.zeros_like(h) * 0
        if self.spoil == "backward":
            h = h + 0 * torch.sqrt(h - h)  # the root's derivative at 0 is infinite
        if self.spoil == "element":
            h = h + torch.zeros_like(h).index_put((torch.tensor(0), torch.tensor(0)), _NAN)
        out: torch.Tensor = self.second(h)
        if self.spoil == "output":
            out = out + torch.zeros_like(out).index_put((torch.tensor(0), torch.tensor(0)), _NAN)
        return out


def clip(parameters: list[nn.Parameter], most: float) -> None:
    """By the norm over all stages."""
    grads = [p.grad for p in parameters if p.grad is not None]
    norm = torch.stack([grad.norm() ** 2 for grad in grads]).sum()
    dist.all_reduce(norm)
    for grad in grads:
        grad.mul_(torch.clamp(most / (norm.sqrt() + 1e-6), max=1.0))


def main() -> None:
    where, who, step, width = sys.argv[1], *map(int, sys.argv[2:])
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(rank)
    module = Stage(width)
    stage = PipelineStage(module, rank, last + 1, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    for number in range(STEPS):
        time.sleep(0.02)
        module.spoil = where if rank == who and number == step else ""
        losses: list[Any] = []
        x = torch.randn(BATCH, width)
        if rank == 0:
            schedule.step(x)
        elif rank == last:
            schedule.step(target=torch.zeros_like(x), losses=losses)
        else:
            schedule.step()
        clip(list(module.parameters()), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if losses and number % 10 == 0:
            print(f"step {number} loss {torch.stack(losses).mean().item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
