"""One rank's memory grows with every step.

What is wrong: from one step on, one rank keeps each step's outputs in a list, to look at them
later, with ``--fault-size`` MiB of features beside them. Nobody empties the list.

What happens: nothing, for hours. Then that rank runs out of memory, in a place that has nothing to
do with it.

What pardbg says: memory creep: this rank's memory grows, by how much a step, and that none of it is
parameters, gradients or optimizer state.

    pardbg demo fault:memory-creep --fault-rank 2 --fault-step 5 --fault-size 8
"""

from __future__ import annotations

import torch
from torch import Tensor

from pardbg.recipes.faults.planted import ddp, planted, report_mean
from pardbg.recipes.launch import Options, World, main
from pardbg.recipes.model import loss

NUMBERS_PER_MIB = 2**20 // 4


def train(world: World, options: Options) -> None:
    fault = planted(world, options)
    model, optimizer, batch = ddp(world, options)
    kept: list[Tensor] = []
    for step in range(options.steps):
        tokens, targets = batch(step)
        scores = model(tokens)
        error = loss(scores, targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        if fault.since(step):
            # FAULT: never emptied
            kept += [scores.detach(), torch.ones(int(fault.size) * NUMBERS_PER_MIB)]
        report_mean(world, step, error)
    world.say(f"kept {sum(tensor.nbytes for tensor in kept)} bytes of outputs")


if __name__ == "__main__":
    main("fault:memory-creep", train)
