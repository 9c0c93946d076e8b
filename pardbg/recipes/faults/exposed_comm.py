"""A large collective in the middle of the step, which all ranks wait for.

What is wrong: each step gathers ``--fault-size`` MiB of features from every rank and waits at once,
though nothing needs them before the next step.

What happens: the losses are right. The ranks stand still while bytes travel: communication that no
compute hides, paid in every step.

What pardbg says: exposed communication: how much of the step it is, which op it is, and that it
could run beside the compute that follows.

    pardbg demo fault:exposed-comm --fault-size 32
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from pardbg.recipes.faults.planted import ddp, report_mean
from pardbg.recipes.launch import Options, World, main
from pardbg.recipes.model import loss

NUMBERS_PER_MIB = 2**20 // 4


def train(world: World, options: Options) -> None:
    model, optimizer, batch = ddp(world, options)
    mine = torch.ones(options.own["fault-size"] * NUMBERS_PER_MIB, device=world.device)
    all_ranks = [torch.empty_like(mine) for _ in range(world.size)]
    for step in range(options.steps):
        tokens, targets = batch(step)
        dist.all_gather(all_ranks, mine)  # FAULT: waits here; async_op=True would not
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        report_mean(world, step, error)


if __name__ == "__main__":
    main("fault:exposed-comm", train)
