"""Data parallel training that ends well and is wrong, or costs more than it should:
`torchrun … -m tests.diagnosis.number_programs WHAT RANK STEP`. Nothing of pardbg is in it."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = 60
BY_DDP = ("wrapped-twice", "averaged-twice", "same-data-ddp", "fine-ddp")


class Job:
    """One rank's training."""

    def __init__(self, what: str, who: int, step: int) -> None:
        self.what, self.step = what, step
        self.rank = dist.get_rank()
        self.mine = self.rank == who
        torch.manual_seed(self.rank if what == "init-differs" else 0)
        self.model: nn.Module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
        self.parameters = list(self.model.parameters())
        if what in BY_DDP:
            self.model = DDP(self.model)
        if what == "wrapped-twice":
            self.model = DDP(self.model)
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.01, momentum=0.9)
        same = what.startswith("same-data")
        self.data = torch.Generator().manual_seed(7 if same else 100 + self.rank)

    def train(self) -> None:
        for number in range(STEPS):
            time.sleep(0.02)
            at = number >= self.step
            if self.what == "lr-differs" and self.mine and at:
                self.optimizer.param_groups[0]["lr"] = 0.03
            x = torch.randn(16, 64, generator=self.data)
            if self.what == "skips-nan" and self.mine and number == self.step:
                x[0] = float("nan")
            loss = (self.model(x) - x[:, :8]).pow(2).mean()
            if self.what == "skips-nan" and not torch.isfinite(loss):
                continue
            self.optimizer.zero_grad()
            loss.backward()
            if self.what == "steps-early" and at:
                self.optimizer.step()
            if self.what not in BY_DDP or (self.what == "averaged-twice" and at):
                self.average()
            if self.what != "steps-early" or not at:
                self.optimizer.step()
            if self.rank == 0 and number % 10 == 0:
                print(f"step {number} loss {loss.item():.4f}", flush=True)

    def average(self) -> None:
        works = []
        for parameter in self.parameters:
            assert parameter.grad is not None
            parameter.grad /= dist.get_world_size()
            works.append(dist.all_reduce(parameter.grad, async_op=True))
        if self.what != "never-waited":
            for work in works:
                assert work is not None
                work.wait()


def main() -> None:
    dist.init_process_group("gloo")
    Job(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])).train()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
