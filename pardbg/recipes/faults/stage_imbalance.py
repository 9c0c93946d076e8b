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

from torch import nn

from pardbg.recipes.launch import Options, World, main
from pardbg.recipes.model import blocks_of
from pardbg.recipes.onef1b import make_schedule
from pardbg.recipes.pipeline import train_pipeline
from pardbg.recipes.shape import BLOCKS


def train(world: World, options: Options) -> None:
    # FAULT: not BLOCKS / size for each
    sizes = uneven_cut(world.size, options.own["fault-rank"], options.own["fault-size"])

    def cut(whole: nn.Sequential, index: int, num_stages: int) -> nn.Module:
        begin = sum(sizes[:index])
        return blocks_of(whole, begin, begin + sizes[index])

    train_pipeline(world, options, make_schedule, cut=cut)


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
