"""Naive model parallel: layers on different ranks, and the whole batch goes through them at once.

    rank 0  F  .. .. .. .. .. .. .. .. .. B  --
    rank 1     F  .. .. .. .. .. .. B  --
    rank 2        F  .. .. .. B  --
    rank 3           F  B  --

    (time to the right; a backward takes two columns; dots: the rank waits for the others)

The model that no rank could hold is cut into one part per rank. There are no microbatches, so there
is nothing to overlap: while one rank computes, the others wait, (p-1)/p = 75 % of the time with
four ranks. What a pipeline adds to this is only to cut the batch into pieces (gpipe.py).

What travels: once per step and neighbour, one activation forward and its gradient back,
16 sequences × 64 positions × 64 numbers × 4 bytes = 256 KiB each. Here by hand, with send and recv:
between two ranks autograd's graph is cut, and backward starts anew from the gradient that comes.

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.mp
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from pardbg.lab.recipes.data import Text
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import gpt, loss, stage
from pardbg.lab.recipes.shape import BATCH, CONTEXT, WIDTH


def train(world: World, options: Options) -> None:
    first, last = world.rank == 0, world.rank == world.size - 1
    before, behind = world.rank - 1, world.rank + 1
    part = stage(gpt(options.seed, options.pace_ms), world.rank, world.size).to(world.device)
    optimizer = torch.optim.AdamW(part.parameters(), lr=options.lr)
    text = Text(options.seed, world.device)

    for step in range(options.steps):
        tokens, targets = text.batch(step)
        optimizer.zero_grad()
        if first:
            x = tokens
        else:
            # The receiver has to know the shape: nothing but the numbers travels.
            x = torch.empty(BATCH, CONTEXT, WIDTH, device=world.device)
            dist.recv(x, src=before)
            x.requires_grad_()  # backward is to end in x.grad, which rank ``before`` waits for
        y = part(x)
        if last:
            error = loss(y, targets)
            error.backward()
            world.report(step, error.item())
        else:
            dist.send(y.detach(), dst=behind)
            gradient = torch.empty_like(y)
            dist.recv(gradient, src=behind)
            y.backward(gradient)
        if x.grad is not None:  # the first part's input is tokens: nobody waits for theirs
            dist.send(x.grad, dst=before)
        optimizer.step()


if __name__ == "__main__":
    main("mp", train)
