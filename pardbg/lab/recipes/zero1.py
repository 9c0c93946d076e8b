"""ZeRO 1: data parallel, but each rank keeps the optimizer's state of its own parameters only."""

from __future__ import annotations

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from pardbg.lab.recipes.data import batches
from pardbg.lab.recipes.ddp import replica
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import loss


def train(world: World, options: Options) -> None:
    model = replica(world, options)
    # Whole parameters are dealt out, largest first, each to the rank that has least so far.
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.AdamW, lr=options.lr
    )

    for step, tokens, targets in batches(world, options):
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()  # all_reduce of all gradients, as with plain DDP
        optimizer.step()  # AdamW on my quarter, then everybody broadcasts theirs

        world.report_mean(step, error)


if __name__ == "__main__":
    main("zero1", train)
