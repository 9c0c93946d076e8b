"""Fully sharded: every rank keeps a part of each parameter, gradient and optimizer state."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from pardbg.lab.recipes.data import batches
from pardbg.lab.recipes.launch import Options, Train, World, main_of
from pardbg.lab.recipes.model import gpt, loss

SHARDS: Final = 2
"""Number of ranks of a ``hsdp`` group that share one copy. On real machines: the GPUs of one."""


def zero(world: World, options: Options, reshard: bool) -> None:
    """Shard over all ranks."""
    mesh = init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("dp_shard",))
    train_sharded(world, options, mesh, reshard)


def hsdp(world: World, options: Options) -> None:
    """Shard within groups, replicate across them."""
    names = ("dp_replicate", "dp_shard")
    shape = (world.size // SHARDS, SHARDS)
    mesh = init_device_mesh(world.device.type, shape, mesh_dim_names=names)
    train_sharded(world, options, mesh, reshard=True)


def train_sharded(world: World, options: Options, mesh: DeviceMesh, reshard: bool) -> None:
    """Train with FSDP. ``reshard``: free a block's parameters between forward and backward."""
    model = gpt(options.seed, options.pace_ms).to(world.device)
    _, *blocks, _ = model
    # Inner modules first: each call takes the parameters that no earlier one has taken.
    for block in blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    # The root is needed at both ends of the forward and first in backward: it is never thrown away
    # in between.
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    # After fully_shard: from here on model.parameters() are this rank's parts (DTensors).
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)

    # To the data this is plain data parallelism: each rank has sequences of its own.
    for step, tokens, targets in batches(world, options):
        error = loss(model(tokens), targets)  # all_gather before each block
        optimizer.zero_grad()
        error.backward()  # all_gather again where it was thrown away; reduce_scatter behind
        optimizer.step()  # no traffic: my parts, my gradients, my state

        world.report_mean(step, error)


RECIPES: Final[Mapping[str, Train]] = {
    "zero2": partial(zero, reshard=False),
    "zero3": partial(zero, reshard=True),
    "hsdp": hsdp,
}

if __name__ == "__main__":
    main_of(RECIPES)
