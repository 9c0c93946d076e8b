"""Data parallel: every rank has the whole model and computes its share of the batch.

        rank 0: sequences 0-3    forward  backward ┐
        rank 1: sequences 4-7    forward  backward ├ all_reduce of the gradients ─► same update
        rank 2: sequences 8-11   forward  backward │
        rank 3: sequences 12-15  forward  backward ┘

What travels: the gradients, as large as the parameters (1.7 MB here), once per step. DDP packs
them into buckets and starts a bucket's all_reduce as soon as backward has filled it, from C++,
while the blocks before it still compute. In a ring each rank sends 2 (n-1)/n of that: 2.6 MB for
four ranks, whatever the batch. What it costs is memory: n copies of everything.

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.ddp
"""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from pardbg.lab.recipes.data import Text, share
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import gpt, loss


def train(world: World, options: Options) -> None:
    # The same seed gives every rank the same weights; DDP broadcasts rank 0's all the same.
    # Buckets of half a MB make four here, and something to overlap; the default of 25 MB would
    # make one. In the first step it is one all the same: DDP still learns the order in which
    # gradients come.
    model = DistributedDataParallel(
        gpt(options.seed, options.pace_ms).to(world.device), bucket_cap_mb=0.5
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    text = Text(options.seed, world.device)
    mine = share(world.rank, world.size)

    for step in range(options.steps):
        tokens, targets = (part[mine] for part in text.batch(step))
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()  # the all_reduces start in here, and all have ended when it returns
        optimizer.step()  # no traffic: equal weights and equal gradients stay equal

        world.report_mean(step, error)


if __name__ == "__main__":
    main("ddp", train)
