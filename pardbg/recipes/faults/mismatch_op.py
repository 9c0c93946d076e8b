"""One rank calls another collective than the others.

What is wrong: only rank 0 prints the mean loss, so one rank, in one step, sends its share to rank 0
alone with reduce, while the others call all_reduce. Each is right by itself; together they are not:
a group's ranks must call the same operations in the same order.

What happens: each side waits for messages that the other never sends. Gloo raises after
``--timeout-s`` on some of them, with a word about a connection. Nothing says "mismatch".

What pardbg says: op mismatch, in which group and at which place in its order, who called what, and
the rank that differs.

    pardbg demo fault:mismatch-op --fault-rank 2 --fault-step 5
"""

from __future__ import annotations

import torch.distributed as dist

from pardbg.recipes.faults.planted import ddp, planted
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

        mean = error.detach()
        if fault.now(step):
            dist.reduce(mean, dst=0)  # FAULT: reduce here, all_reduce on every other rank
        else:
            dist.all_reduce(mean)
        if world.rank == 0:
            world.report(step, mean.item() / world.size)


if __name__ == "__main__":
    main("fault:mismatch-op", train)
