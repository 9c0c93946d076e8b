"""Activation checkpointing: forget what is inside a block, compute it again when backward needs it.

    step 0, recomputed   forward  1 2 3 4 5 6 7 8   backward  8 8 7 7 6 6 5 5 4 4 3 3 2 2 1 1
                         keeps    blocks' inputs              F B F B …
    step 1, kept         forward  1 2 3 4 5 6 7 8   backward  8 7 6 5 4 3 2 1
                         keeps    all that is inside

Backward needs what forward computed. A block has more than a dozen such tensors inside: normalized
inputs, queries, keys, values, the MLP's wide middle. Checkpointing keeps the block's input alone
(4 sequences × 64 positions × 64 numbers × 4 bytes = 64 KiB here) and runs its forward again, with
the same result, when backward comes to the block: a third more compute for many times less memory.

What travels is plain data parallelism's (ddp.py): recomputing sends nothing. Here every other step
recomputes, so that both can be seen side by side; the losses know no difference.

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.recompute --when always
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from pardbg.lab.recipes.data import Text, share
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import gpt, loss


class Recomputed(nn.Module):
    """A block whose inside may be forgotten."""

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
    text = Text(options.seed, world.device)
    mine = share(world.rank, world.size)
    when = options.own["when"]

    for step in range(options.steps):
        forget = when == "always" or (when == "alternate" and step % 2 == 0)
        for block in wrapped:
            block.forget = forget
        tokens, targets = (part[mine] for part in text.batch(step))
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()

        world.report_mean(step, error)


if __name__ == "__main__":
    main("recompute", train)
