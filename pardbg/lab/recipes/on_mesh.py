"""Several dimensions on one mesh: data × pipeline parallel, and these × tensor parallel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

from pardbg.lab.recipes.data import batches, share
from pardbg.lab.recipes.launch import Options, Train, World, main_of
from pardbg.lab.recipes.model import gpt, loss, stage
from pardbg.lab.recipes.pipeline import run_schedule
from pardbg.lab.recipes.tp import parallelize


def dp_pp(world: World, options: Options) -> None:
    replicas = options.own["replicas"]
    shape = (replicas, world.size // replicas)
    mesh = init_device_mesh(world.device.type, shape, mesh_dim_names=("dp", "pp"))
    part = own_stage(world, options, mesh)
    # The stage's copies are DDP's replicas. torch's pipeline stage knows DDP: it lets gradients
    # add up locally and has them reduced in the backward of the last microbatch only.
    group = mesh["dp"].get_group()
    copy = DistributedDataParallel(part, process_group=group, bucket_cap_mb=0.5)
    optimizer = torch.optim.AdamW(part.parameters(), lr=options.lr)
    # The stage finds the shapes by one more forward, which DDP takes for one whose backward
    # reduces: without no_sync the first microbatch's gradients would be reduced too, and DDP
    # fail at the next step wherever all forwards come before all backwards.
    train_stage(world, options, mesh, copy, optimizer, copy.no_sync)


def three_d(world: World, options: Options) -> None:
    replicas, cut = options.own["dp"], options.own["tp"]
    shape = (replicas, world.size // (replicas * cut), cut)
    mesh = init_device_mesh(world.device.type, shape, mesh_dim_names=("dp", "pp", "tp"))
    # From the inside out: the stage's blocks are cut over tp; what is left of them on this rank is
    # sharded over dp; the result is a stage of this rank's pipeline.
    part = own_stage(world, options, mesh)
    parallelize(part, mesh["tp"])
    # One unit for the whole stage. Kept gathered from the first forward to the last backward:
    # a pipeline would have it gathered for each microbatch otherwise.
    fsdp.fully_shard(part, mesh=mesh["dp"], reshard_after_forward=False)
    # Parameters lie on meshes of one and of two dimensions: they cannot be updated in one batch.
    optimizer = torch.optim.AdamW(part.parameters(), lr=options.lr, foreach=False)
    # The ranks of a tp group see the same sequences, those of a dp group different ones.
    train_stage(world, options, mesh, part, optimizer)


def own_stage(world: World, options: Options, mesh: DeviceMesh) -> nn.Sequential:
    """Return this rank's stage of its pipeline."""
    pp = mesh["pp"]
    whole = gpt(options.seed, options.pace_ms)
    return stage(whole, pp.get_local_rank(), pp.size()).to(world.device)


def train_stage(
    world: World, options: Options, mesh: DeviceMesh, part: nn.Module,
    optimizer: torch.optim.Optimizer,
    quiet: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:  # fmt: skip
    """Train by 1F1B along pp; parallel pipelines along dp take different sequences."""
    dp, pp = mesh["dp"], mesh["pp"]
    index, num_stages = pp.get_local_rank(), pp.size()
    first, last = index == 0, index == num_stages - 1
    pipe = PipelineStage(part, index, num_stages, world.device, group=pp.get_group())
    schedule = Schedule1F1B(pipe, options.own["microbatches"], loss_fn=loss)

    mine = share(dp.get_local_rank(), dp.size())
    for step, tokens, targets in batches(world, options, mine):
        optimizer.zero_grad()
        with quiet():
            losses = run_schedule(schedule, tokens if first else None, targets if last else None)
        optimizer.step()
        if last:
            # Each pipeline knows its share's loss only. Four more bytes, for people to read.
            mean = torch.stack(losses).mean().detach()
            dist.all_reduce(mean, group=dp.get_group())
            if sum(mesh.get_coordinate() or ()) == index:  # 0 along every other dimension
                world.report(step, mean.item() / dp.size())


RECIPES: Final[Mapping[str, Train]] = {"dp-pp": dp_pp, "3d": three_d}

if __name__ == "__main__":
    main_of(RECIPES)
