"""Naive model parallel: layers on different ranks; the whole batch passes through all of them."""

from __future__ import annotations

import torch
import torch.distributed as dist

from pardbg.lab.recipes.data import WHOLE, batches
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import gpt, loss, stage
from pardbg.lab.recipes.shape import BATCH, CONTEXT, WIDTH


def train(world: World, options: Options) -> None:
    first, last = world.rank == 0, world.rank == world.size - 1
    before, behind = world.rank - 1, world.rank + 1
    part = stage(gpt(options.seed, options.pace_ms), world.rank, world.size).to(world.device)
    optimizer = torch.optim.AdamW(part.parameters(), lr=options.lr)

    for step, tokens, targets in batches(world, options, WHOLE):
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
