"""One rank's loss becomes NaN, and a step later everybody's weights are.

What is wrong: the loss is the mean over the tokens that count, leaving out padding. In one step
nothing but padding is in one rank's share, and the mean of nothing is 0/0.

What happens: that rank's gradients are NaN, the all_reduce averages them into everybody's, and the
optimizer writes them to all weights. From the next step on every loss on every rank is NaN, so by
the time one looks there is no telling where it began. Nothing stops; the exit code is 0.

What pardbg says: which rank's loss was NaN first, in which step; all others follow.

    pardbg demo fault:nan --fault-rank 2 --fault-step 5
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from pardbg.recipes.faults.planted import ddp, planted, report_mean
from pardbg.recipes.launch import Options, World, main


def train(world: World, options: Options) -> None:
    fault = planted(world, options)
    model, optimizer, batch = ddp(world, options)
    for step in range(options.steps):
        tokens, targets = batch(step)
        counts = torch.ones_like(targets, dtype=torch.float32)
        if fault.now(step):
            counts.zero_()  # FAULT: padding only
        each = F.cross_entropy(model(tokens).transpose(1, 2), targets, reduction="none")
        error = (each * counts).sum() / counts.sum()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        report_mean(world, step, error)


if __name__ == "__main__":
    main("fault:nan", train)
