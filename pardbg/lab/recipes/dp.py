"""nn.DataParallel: one process, all GPUs of one machine. The oldest way, and the simplest to type.

    GPU 0: batch ─► scatter ─► GPU 0: sequences 0-7   ─► gather ─► scores on GPU 0 ─► loss, step
           weights ─► copy ──► GPU 1: sequences 8-15  ─► gather ┘

What travels: in every forward the weights from GPU 0 to all others (1.7 MB each) and the scores
back, in every backward the gradients back to GPU 0. One Python process drives all GPUs, one thread
each, and GPU 0 does more than the others: so DDP, with a process per GPU and nothing copied but
gradients, has replaced it. As there is one rank only, pardbg sees its steps and its memory, not the
copies inside. ps.py shows the same exchange between processes.

    pardbg demo dp
"""

from __future__ import annotations

import torch
from torch import nn

from pardbg.lab.recipes.data import Text
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import gpt, loss


def train(world: World, options: Options) -> None:
    model = nn.DataParallel(gpt(options.seed, options.pace_ms).to(world.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    text = Text(options.seed, world.device)

    for step in range(options.steps):
        tokens, targets = text.batch(step)  # the whole batch: the model cuts it
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        world.report(step, error.item())


if __name__ == "__main__":
    main("dp", train)
