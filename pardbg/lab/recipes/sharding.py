"""Fully sharded: every rank keeps a part of each parameter, gradient and optimizer state.

    block 1's parameters   ┌────────┬────────┬────────┬────────┐
                           │ rank 0 │ rank 1 │ rank 2 │ rank 3 │   between uses
                           └────────┴────────┴────────┴────────┘
        all_gather ─►  all of it on every rank  ─► compute ─►  throw the others' parts away
        backward   ─►  all of its gradient      ─► reduce_scatter ─► my part of the sum

A *unit* is what is gathered and thrown away together: here each block, and the rest (embedding and
head) as the root. A rank's optimizer sees its parts alone and knows nothing of all this.

What travels, per unit and step: one reduce_scatter of its gradients, and an all_gather of its
parameters each time they are needed again: 195 KiB for a block, 144 KiB for the root. zero3.py
gathers a block twice and holds few at a time; zero2.py gathers once and holds all of them from
forward to backward; hsdp.py shards within small groups and replicates across them. That, and the
mesh, is all they differ in.
"""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from pardbg.lab.recipes.data import Text, share
from pardbg.lab.recipes.launch import Options, World
from pardbg.lab.recipes.model import gpt, loss


def train_sharded(world: World, options: Options, mesh: DeviceMesh, reshard: bool) -> None:
    """``reshard``: throw a block's parameters away after its forward, gather them for backward."""
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
    text = Text(options.seed, world.device)
    # To the data this is plain data parallelism: each rank has sequences of its own.
    mine = share(world.rank, world.size)

    for step in range(options.steps):
        tokens, targets = (part[mine] for part in text.batch(step))
        error = loss(model(tokens), targets)  # all_gather before each block
        optimizer.zero_grad()
        error.backward()  # all_gather again where it was thrown away; reduce_scatter behind
        optimizer.step()  # no traffic: my parts, my gradients, my state

        world.report_mean(step, error)
