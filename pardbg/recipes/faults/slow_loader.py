"""One rank's data comes late.

What is wrong: from one step on, one rank's loader takes ``--fault-size`` milliseconds more for a
batch: a cold disk, a decoder with too few workers, a slow network file system.

What happens: as with a slow device: every step takes as long as the slowest rank's. But here the
rank's compute is as fast as ever, and a faster device would help nothing.

What pardbg says: straggler, this rank, and that it is its data loading that takes longer, not its
compute.

    pardbg demo fault:slow-loader --fault-rank 2 --fault-step 5 --fault-size 80
"""

from __future__ import annotations

import time

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pardbg.recipes.faults.planted import Batch, Fault, ddp, planted, report_mean
from pardbg.recipes.launch import Options, World, main
from pardbg.recipes.model import loss


class Batches(Dataset[tuple[Tensor, Tensor]]):
    """This rank's share of each step's batch, by step."""

    def __init__(self, batch: Batch, steps: int, fault: Fault) -> None:
        self.batch, self.steps, self.fault = batch, steps, fault

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        if self.fault.since(step):
            time.sleep(self.fault.size / 1e3)  # FAULT: this rank's disk is slow
        return self.batch(step)


def train(world: World, options: Options) -> None:
    model, optimizer, batch = ddp(world, options)
    loader = DataLoader(Batches(batch, options.steps, planted(world, options)), batch_size=None)
    for step, (tokens, targets) in enumerate(loader):
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        report_mean(world, step, error)


if __name__ == "__main__":
    main("fault:slow-loader", train)
