"""Data parallel × pipeline parallel: several pipelines side by side, each with part of the batch.

    mesh (dp, pp)   pp=0            pp=1
    dp=0            rank 0    ─►    rank 1    ─► loss of sequences 0-7
                    blocks 0-3 ◄─   blocks 4-7
                       ║               ║
    dp=1            rank 2    ─►    rank 3    ─► loss of sequences 8-15
                    blocks 0-3 ◄─   blocks 4-7

    ─► ◄─  within a pipeline (a row): activations and their gradients, one microbatch at a time
    ║      between the copies of a stage (a column): the gradients of its parameters, once a step

A pipeline cannot grow for ever: with more ranks the bubble grows, and in the end there are no more
layers to cut. Beyond that one takes copies of the pipeline, as DDP takes copies of the model. A
rank is in two groups: the row it hands microbatches along, and the column it averages with.

What travels: per microbatch and border 2 sequences × 64 positions × 64 numbers × 4 bytes = 32 KiB
forward and as much back. Per step an all_reduce of each stage's gradients, 0.9 MB, over the column:
from inside the last microbatch's backward, while backward still computes.

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.dp_pp
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

from pardbg.lab.recipes.data import Text
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import gpt, loss, stage
from pardbg.lab.recipes.pipeline import run_schedule
from pardbg.lab.recipes.shape import BATCH


def train(world: World, options: Options) -> None:
    replicas = options.own["replicas"]
    shape = (replicas, world.size // replicas)
    mesh = init_device_mesh(world.device.type, shape, mesh_dim_names=("dp", "pp"))
    dp, pp = mesh["dp"], mesh["pp"]
    index, num_stages = pp.get_local_rank(), pp.size()
    first, last = index == 0, index == num_stages - 1

    part = stage(gpt(options.seed, options.pace_ms), index, num_stages).to(world.device)
    # The stage's copies are DDP's replicas. torch's pipeline stage knows DDP: it lets gradients
    # add up locally and has them reduced in the backward of the last microbatch only.
    copy = DistributedDataParallel(part, process_group=dp.get_group(), bucket_cap_mb=0.5)
    pipe = PipelineStage(copy, index, num_stages, world.device, group=pp.get_group())
    schedule = Schedule1F1B(pipe, options.own["microbatches"], loss_fn=loss)
    optimizer = torch.optim.AdamW(part.parameters(), lr=options.lr)
    text = Text(options.seed, world.device)
    share = BATCH // replicas
    mine = slice(dp.get_local_rank() * share, (dp.get_local_rank() + 1) * share)

    for step in range(options.steps):
        tokens, targets = (half[mine] for half in text.batch(step))
        optimizer.zero_grad()
        # The stage finds the shapes by one more forward, which DDP takes for one whose backward
        # reduces: without no_sync the first microbatch's gradients would be reduced too, and DDP
        # fail at the next step wherever all forwards come before all backwards.
        with copy.no_sync():
            losses = run_schedule(schedule, tokens if first else None, targets if last else None)
        optimizer.step()
        if last:
            # Each pipeline knows its share's loss only. Four more bytes, for people to read.
            mean = torch.stack(losses).mean().detach()
            dist.all_reduce(mean, group=dp.get_group())
            if dp.get_local_rank() == 0:
                world.report(step, mean.item() / replicas)


if __name__ == "__main__":
    main("dp-pp", train)
