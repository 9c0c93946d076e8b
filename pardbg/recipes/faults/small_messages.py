"""Gradients averaged one tensor at a time: a hundred tiny collectives a step.

What is wrong: instead of DDP, a loop over the parameters calls all_reduce for each. That is what
the textbook shows, and each call is right.

What happens: the losses are right. But each of a model's hundred tensors, most of them of 64
numbers, costs a whole round of messages, and all of them come after backward, where nothing hides
them.

What pardbg says: small-message collectives: how many per step, how many bytes each, what they cost
together, and to put them into buckets.

    pardbg demo fault:small-messages
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from pardbg.recipes.faults.planted import report_mean, shares
from pardbg.recipes.launch import Options, World, main
from pardbg.recipes.model import gpt, loss


def train(world: World, options: Options) -> None:
    model = gpt(options.seed, options.pace_ms).to(world.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    batch = shares(world, options)
    for step in range(options.steps):
        tokens, targets = batch(step)
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        for parameter in model.parameters():  # FAULT: no buckets, no overlap
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= world.size
        optimizer.step()
        report_mean(world, step, error)


if __name__ == "__main__":
    main("fault:small-messages", train)
