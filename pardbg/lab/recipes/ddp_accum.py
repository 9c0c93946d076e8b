"""Data parallel with gradient accumulation: several backwards, one all_reduce, one step."""

from __future__ import annotations

from contextlib import nullcontext

import torch

from pardbg.lab.recipes.data import batches
from pardbg.lab.recipes.ddp import replica
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import loss


def train(world: World, options: Options) -> None:
    model = replica(world, options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    pieces = options.own["pieces"]

    for step, tokens, targets in batches(world, options):
        parts = zip(tokens.chunk(pieces), targets.chunk(pieces), strict=True)
        mean = torch.zeros((), device=world.device)
        optimizer.zero_grad()
        for piece, (some, wanted) in enumerate(parts):
            # DDP decides in forward what the backward will do, so both stand inside.
            with model.no_sync() if piece < pieces - 1 else nullcontext():
                # Divided, so that the sum over the pieces is the mean over the share.
                error = loss(model(some), wanted) / pieces
                error.backward()
            mean += error.detach()
        optimizer.step()

        world.report_mean(step, mean)


if __name__ == "__main__":
    main("ddp-accum", train)
