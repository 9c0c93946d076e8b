"""One rank takes two groups' collectives the other way round: a deadlock over two groups.

What is wrong: losses and correct guesses are averaged in two process groups, first one, then the
other. In one step one rank begins with the other. Within each group the order is right, so looking
at one group at a time shows nothing but a rank that is late.

What happens: the rank waits in one group for all others, and all others wait in the other group for
it. Gloo raises after ``--timeout-s`` in both.

What pardbg says: deadlock: the cycle of who waits for whom, through which groups, and the place in
the program where each stands.

    pardbg demo fault:group-order --fault-rank 2 --fault-step 5
"""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import torch.distributed as dist

from pardbg.recipes.faults.planted import ddp, planted
from pardbg.recipes.launch import Options, World, main
from pardbg.recipes.model import loss


def train(world: World, options: Options) -> None:
    fault = planted(world, options)
    model, optimizer, batch = ddp(world, options)
    # A new group has torch's half hour, whatever the first one was given.
    limit = timedelta(seconds=options.own["timeout-s"])
    losses = cast(dist.ProcessGroup, dist.new_group(timeout=limit, group_desc="losses"))
    guesses = cast(dist.ProcessGroup, dist.new_group(timeout=limit, group_desc="guesses"))
    for step in range(options.steps):
        tokens, targets = batch(step)
        scores = model(tokens)
        error = loss(scores, targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()

        mean = error.detach()
        right = (scores.argmax(dim=-1) == targets).float().mean()
        if fault.now(step):
            dist.all_reduce(right, group=guesses)  # FAULT: guesses before losses
            dist.all_reduce(mean, group=losses)
        else:
            dist.all_reduce(mean, group=losses)
            dist.all_reduce(right, group=guesses)
        if world.rank == 0:
            world.report(step, mean.item() / world.size)


if __name__ == "__main__":
    main("fault:group-order", train)
