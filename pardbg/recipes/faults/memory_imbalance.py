"""One rank uses much more memory than its peers.

What is wrong: from one step on, one rank alone keeps ``--fault-size`` MiB of features for an
evaluation that only it does. The batch is cut the same for all.

What happens: nothing, until the batch or the model grows: then this rank is out of memory while the
others have room to spare. The largest rank decides what fits.

What pardbg says: memory imbalance: this rank uses so much more than the median of its peers, in no
category that the parallelism explains.

    pardbg demo fault:memory-imbalance --fault-rank 2 --fault-step 5 --fault-size 512
"""

from __future__ import annotations

import torch

from pardbg.recipes.faults.planted import ddp, planted, report_mean
from pardbg.recipes.launch import Options, World, main
from pardbg.recipes.model import loss

NUMBERS_PER_MIB = 2**20 // 4


def train(world: World, options: Options) -> None:
    fault = planted(world, options)
    model, optimizer, batch = ddp(world, options)
    features = torch.empty(0)
    for step in range(options.steps):
        if fault.now(step):
            features = torch.ones(int(fault.size) * NUMBERS_PER_MIB)  # FAULT: on this rank alone
        tokens, targets = batch(step)
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        report_mean(world, step, error)
    world.say(f"kept {features.nbytes} bytes of features")


if __name__ == "__main__":
    main("fault:memory-imbalance", train)
