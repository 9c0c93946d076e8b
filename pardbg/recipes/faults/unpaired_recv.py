"""A rank receives what nobody sends.

What is wrong: in one step one rank waits for a number from the rank after it, which sends it only
if its own loss is large. It is not.

What happens: the rank stands in recv and the others in the all_reduce behind it, until gloo raises
after ``--timeout-s``.

What pardbg says: an unpaired receive: which rank waits for which, since when, and the place in the
program. The rank that should have sent has gone on, and waits in a collective like all others.

    pardbg demo fault:unpaired-recv --fault-rank 2 --fault-step 5
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from pardbg.recipes.faults.planted import ddp, planted, report_mean
from pardbg.recipes.launch import Options, World, main
from pardbg.recipes.model import loss


def train(world: World, options: Options) -> None:
    fault = planted(world, options)
    model, optimizer, batch = ddp(world, options)
    for step in range(options.steps):
        tokens, targets = batch(step)
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        if fault.now(step):
            theirs = torch.empty_like(error)
            # FAULT: the next rank has no send for this
            dist.recv(theirs, (world.rank + 1) % world.size)
        report_mean(world, step, error)


if __name__ == "__main__":
    main("fault:unpaired-recv", train)
