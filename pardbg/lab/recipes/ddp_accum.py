"""Data parallel with gradient accumulation: several backwards, one all_reduce, one step.

    rank 0   F B · F B · … · F B ─┐
    rank 1   F B · F B · … · F B ─┤ all_reduce ─► step
    rank 2   F B · F B · … · F B ─┤
    rank 3   F B · F B · … · F B ─┘
             └── no_sync ──┘

Each rank cuts its share of the batch into pieces and takes them one after another: the activations
of one piece are in memory at a time, the gradients add up, and the step is that of the whole batch.

What travels: as much per step as without accumulation, the gradients once. Without no_sync() DDP
would send them after every backward: twice here, 16 times with 16 pieces, and all but the last for
nothing. So accumulation also makes a slow network bearable.

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.ddp_accum --pieces 2
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel

from pardbg.lab.recipes.data import Text, share
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import gpt, loss


def train(world: World, options: Options) -> None:
    model = DistributedDataParallel(
        gpt(options.seed, options.pace_ms).to(world.device), bucket_cap_mb=0.5
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    text = Text(options.seed, world.device)
    mine = share(world.rank, world.size)
    pieces = options.own["pieces"]

    for step in range(options.steps):
        tokens, targets = (part[mine].chunk(pieces) for part in text.batch(step))
        mean = torch.zeros((), device=world.device)
        optimizer.zero_grad()
        for piece in range(pieces):
            # DDP decides in forward what the backward will do, so both stand inside.
            with model.no_sync() if piece < pieces - 1 else nullcontext():
                # Divided, so that the sum over the pieces is the mean over the share.
                error = loss(model(tokens[piece]), targets[piece]) / pieces
                error.backward()
            mean += error.detach()
        optimizer.step()

        world.report_mean(step, mean)


if __name__ == "__main__":
    main("ddp-accum", train)
