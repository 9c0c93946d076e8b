"""One rank broadcasts from itself, the others wait for rank 0.

What is wrong: rank 0 decides the learning rate and broadcasts it. In one step one rank passes
itself as the source, as happens when a rank within a group is taken for a rank of the job. (Rank 0,
which would be right with itself, passes rank 1.)

What happens: that rank sends instead of receiving, the messages meet in the wrong operations, and
the ranks stand in this collective or the next until gloo raises after ``--timeout-s``.

What pardbg says: root mismatch, which root each rank named, and the rank that differs.

    pardbg demo fault:mismatch-root --fault-rank 2 --fault-step 5
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
        rate = torch.tensor(options.lr)
        # FAULT: one rank names itself
        dist.broadcast(rate, src=(world.rank or 1) if fault.now(step) else 0)
        optimizer.param_groups[0]["lr"] = rate.item()

        tokens, targets = batch(step)
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        report_mean(world, step, error)


if __name__ == "__main__":
    main("fault:mismatch-root", train)
