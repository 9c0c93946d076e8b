"""nn.DataParallel: one process, all GPUs of one machine."""

from __future__ import annotations

import torch
from torch import nn

from pardbg.lab.recipes.data import WHOLE, batches
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import gpt, loss


def train(world: World, options: Options) -> None:
    model = nn.DataParallel(gpt(options.seed, options.pace_ms).to(world.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)

    for step, tokens, targets in batches(world, options, WHOLE):  # the model cuts it
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        world.report(step, error.item())


if __name__ == "__main__":
    main("dp", train)
