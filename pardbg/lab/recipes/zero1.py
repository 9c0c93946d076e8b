"""ZeRO 1: data parallel, but each rank keeps the optimizer's state of its own parameters only.

            parameters  gradients   Adam's two numbers per parameter
    rank 0  all         all         of 1/4 of the parameters   ─┐
    rank 1  all         all         of another 1/4              ├─ each updates its own, then
    rank 2  all         all         of another 1/4              │  broadcasts the new values
    rank 3  all         all         of another 1/4             ─┘

DDP leaves every rank with the same gradients and n times the same Adam state, 3.5 MB here: twice
the parameters. Who updates a parameter needs its state; the others need only the result.

What travels: DDP's all_reduce of the gradients, then a broadcast of the new parameters from each
rank: one step moves once more the parameters' 1.7 MB. (A reduce_scatter would do for the gradients,
as nobody needs those of others any more: zero2.py.)

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.zero1
"""

from __future__ import annotations

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from pardbg.lab.recipes.data import Text, share
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import gpt, loss


def train(world: World, options: Options) -> None:
    model = DistributedDataParallel(
        gpt(options.seed, options.pace_ms).to(world.device), bucket_cap_mb=0.5
    )
    # Whole parameters are dealt out, largest first, each to the rank that has least so far.
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.AdamW, lr=options.lr
    )
    text = Text(options.seed, world.device)
    mine = share(world.rank, world.size)

    for step in range(options.steps):
        tokens, targets = (part[mine] for part in text.batch(step))
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()  # all_reduce of all gradients, as with plain DDP
        optimizer.step()  # AdamW on my quarter, then everybody broadcasts theirs

        world.report_mean(step, error)


if __name__ == "__main__":
    main("zero1", train)
