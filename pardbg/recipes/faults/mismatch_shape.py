"""One rank brings a smaller tensor to a collective than the others.

What is wrong: the losses of all sequences are gathered, for a histogram. In one step one rank has
one sequence less, as at the end of a data set that the ranks do not share evenly. all_gather takes
it that all ranks bring as much as oneself.

What happens: gloo notices a message longer than what it expects, in a thread of its own, and ends
that process with SIGABRT. Its neighbours read "connection reset by peer". On NCCL the same mistake
reads past a buffer, or hangs.

What pardbg says: size mismatch, how many bytes each rank brought, and the rank that differs, though
other ranks than that one have died.

    pardbg demo fault:mismatch-shape --fault-rank 2 --fault-step 5
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn import functional as F

from pardbg.recipes.faults.planted import ddp, planted
from pardbg.recipes.launch import Options, World, main


def train(world: World, options: Options) -> None:
    fault = planted(world, options)
    model, optimizer, batch = ddp(world, options)
    for step in range(options.steps):
        tokens, targets = batch(step)
        scores = model(tokens)
        each = F.cross_entropy(scores.transpose(1, 2), targets, reduction="none").mean(dim=1)
        optimizer.zero_grad()
        each.mean().backward()
        optimizer.step()

        mine = each.detach()
        if fault.now(step):
            mine = mine[:-1].clone()  # FAULT: one sequence less than every other rank
        all_ranks = [torch.empty_like(mine) for _ in range(world.size)]
        dist.all_gather(all_ranks, mine)
        if world.rank == 0:
            world.report(step, torch.cat(all_ranks).mean().item())


if __name__ == "__main__":
    main("fault:mismatch-shape", train)
