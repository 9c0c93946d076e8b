"""A pipeline whose one stage has more blocks than the others.

What is wrong: the cut. One stage gets ``--fault-size`` blocks more than an even cut would give it,
taken from the others: 8 blocks over 4 ranks as 1, 4, 2, 1 instead of 2, 2, 2, 2.

What happens: no error, and the losses are right. A pipeline goes at the pace of its slowest stage:
every other rank waits for it, microbatch after microbatch, and which rank a profile shows idle
depends on where one looks.

What pardbg says: stage imbalance: which stage is slow and by how much, and how far above the
schedule's own bubble this brings the run.

    pardbg demo fault:stage-imbalance --fault-rank 2 --fault-size 2
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from pardbg.recipes.data import Text
from pardbg.recipes.launch import Options, World, main
from pardbg.recipes.model import gpt, loss
from pardbg.recipes.shape import BLOCKS, MICROBATCHES


def train(world: World, options: Options) -> None:
    first, last = world.rank == 0, world.rank == world.size - 1
    # FAULT: not BLOCKS / size for each
    sizes = uneven_cut(world.size, options.own["fault-rank"], options.own["fault-size"])
    begin = sum(sizes[: world.rank])
    embedding, *blocks, head = gpt(options.seed, options.pace_ms)
    part = nn.Sequential(
        *([embedding] if first else []),
        *blocks[begin : begin + sizes[world.rank]],
        *([head] if last else []),
    ).to(world.device)
    stage = PipelineStage(part, world.rank, world.size, world.device)
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=loss)
    optimizer = torch.optim.AdamW(part.parameters(), lr=options.lr)
    text = Text(options.seed, world.device)

    for step in range(options.steps):
        tokens, targets = text.batch(step)
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        schedule.step(
            *([tokens] if first else []),
            target=targets if last else None,
            losses=losses if last else None,
            return_outputs=False,
        )
        optimizer.step()
        if last:
            world.report(step, torch.stack(losses).mean().item())


def uneven_cut(num_stages: int, large: int, more: int) -> list[int]:
    """Blocks per stage: ``more`` of them moved to stage ``large``, one by one from whoever has most
    of the others. Each keeps one."""
    sizes = [BLOCKS // num_stages + (i < BLOCKS % num_stages) for i in range(num_stages)]
    for _ in range(more):
        giver = max((i for i in range(num_stages) if i != large), key=lambda i: sizes[i])
        if sizes[giver] > 1:
            sizes[giver] -= 1
            sizes[large] += 1
    return sizes


if __name__ == "__main__":
    main("fault:stage-imbalance", train)
