"""Data parallel: every rank has the whole model and computes its share of the batch."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from pardbg.lab.recipes.data import batches
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import gpt, loss


def replica(world: World, options: Options) -> DistributedDataParallel:
    """Return the whole model, equal on every rank."""
    # The same seed gives every rank the same weights; DDP broadcasts rank 0's all the same.
    # Buckets of half a MB make four here, and something to overlap; the default of 25 MB would
    # make one. In the first step it is one all the same: DDP still learns the order in which
    # gradients come.
    model = gpt(options.seed, options.pace_ms).to(world.device)
    return DistributedDataParallel(model, bucket_cap_mb=0.5)


def train(world: World, options: Options) -> None:
    model = replica(world, options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)

    for step, tokens, targets in batches(world, options):
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()  # the all_reduces start in here, and all have ended when it returns
        optimizer.step()  # no traffic: equal weights and equal gradients stay equal

        world.report_mean(step, error)


if __name__ == "__main__":
    main("ddp", train)
