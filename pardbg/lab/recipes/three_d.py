"""Three dimensions on one mesh: data parallel × pipeline parallel × tensor parallel.

                              pp=0, blocks 0-3            pp=1, blocks 4-7
    dp=0, sequences 0-7       rank 0 ═tp═ rank 1   ─►     rank 2 ═tp═ rank 3   ─► loss
                                 ║           ║       ◄─      ║           ║
    dp=1, sequences 8-15      rank 4 ═tp═ rank 5   ─►     rank 6 ═tp═ rank 7   ─► loss

    ═tp═   halves of each block's matrices: sums of activations, four times a block and microbatch
    ─► ◄─  a pipeline per tp rank (0-2, 1-3, 4-6, 5-7): one activation per microbatch and direction
    ║      dp, sharded with fully_shard: parameters gathered, gradients reduced, once a step

The order of the dimensions follows the links. What talks most lies innermost, next to each other,
as the GPUs of a machine do: tp. What talks least may lie furthest apart: dp. In between pp, which
sends small things and seldom. That is why the mesh is (dp, pp, tp), the last one innermost.

What travels per rank and step, with 4 microbatches of 2 sequences, 2 × 64 × 64 × 4 = 32 KiB each:
tp: 4 microbatches × 4 blocks × 4 all_reduces of 32 KiB = 2 MiB, in all_reduces nobody overlaps;
pp: 4 × 32 KiB sent, and as much received;
dp: the rank's parameters, half of its stage's, gathered once and reduced once: 0.5 MB each.

    torchrun --nproc-per-node 8 -m pardbg.lab.recipes.three_d
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from pardbg.lab.recipes.data import Text
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import gpt, loss, stage
from pardbg.lab.recipes.pipeline import run_schedule
from pardbg.lab.recipes.shape import BATCH
from pardbg.lab.recipes.tp import parallelize


def train(world: World, options: Options) -> None:
    replicas, cut = options.own["dp"], options.own["tp"]
    shape = (replicas, world.size // (replicas * cut), cut)
    mesh = init_device_mesh(world.device.type, shape, mesh_dim_names=("dp", "pp", "tp"))
    dp, pp, tp = mesh["dp"], mesh["pp"], mesh["tp"]
    index, num_stages = pp.get_local_rank(), pp.size()
    first, last = index == 0, index == num_stages - 1

    # From the inside out: the stage's blocks are cut over tp; what is left of them on this rank is
    # sharded over dp; the result is a stage of this rank's pipeline.
    part = stage(gpt(options.seed, options.pace_ms), index, num_stages).to(world.device)
    parallelize(part, tp)
    # One unit for the whole stage. Kept gathered from the first forward to the last backward:
    # a pipeline would have it gathered for each microbatch otherwise.
    fully_shard(part, mesh=dp, reshard_after_forward=False)
    pipe = PipelineStage(part, index, num_stages, world.device, group=pp.get_group())
    schedule = Schedule1F1B(pipe, options.own["microbatches"], loss_fn=loss)
    # Parameters lie on meshes of one and of two dimensions: they cannot be updated in one batch.
    optimizer = torch.optim.AdamW(part.parameters(), lr=options.lr, foreach=False)
    text = Text(options.seed, world.device)
    share = BATCH // replicas
    mine = slice(dp.get_local_rank() * share, (dp.get_local_rank() + 1) * share)

    for step in range(options.steps):
        # The ranks of a tp group see the same sequences, those of a dp group different ones.
        tokens, targets = (some[mine] for some in text.batch(step))
        optimizer.zero_grad()
        losses = run_schedule(schedule, tokens if first else None, targets if last else None)
        optimizer.step()
        if last:
            # Each pipeline knows its share's loss only. Four more bytes, for people to read.
            mean = torch.stack(losses).mean().detach()
            dist.all_reduce(mean, group=dp.get_group())
            if dp.get_local_rank() == 0 and tp.get_local_rank() == 0:
                world.report(step, mean.item() / replicas)


if __name__ == "__main__":
    main("3d", train)
