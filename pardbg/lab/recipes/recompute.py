"""Activation checkpointing: a block's activations are dropped and computed again in backward."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from pardbg.lab.recipes.data import batches
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import gpt, loss


class Recomputed(nn.Module):
    """A block whose activations may be dropped."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.forget = True

    def forward(self, x: Tensor) -> Tensor:
        if not self.forget:
            return self.block(x)
        # torch stops recomputing at the last tensor that backward needs; the sleep of a paced
        # block, which stands for compute, comes behind it.
        with set_checkpoint_early_stop(False):
            return checkpoint(self.block, x, use_reentrant=False)


def train(world: World, options: Options) -> None:
    embedding, *blocks, head = gpt(options.seed, options.pace_ms)
    wrapped = [Recomputed(block) for block in blocks]
    model = DistributedDataParallel(
        nn.Sequential(embedding, *wrapped, head).to(world.device), bucket_cap_mb=0.5
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    when = options.own["when"]

    for step, tokens, targets in batches(world, options):
        forget = when == "always" or (when == "alternate" and step % 2 == 0)
        for block in wrapped:
            block.forget = forget
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()

        world.report_mean(step, error)


if __name__ == "__main__":
    main("recompute", train)
