"""Hybrid sharding: sharded within a group of 2, replicated across the groups.

                         dp_shard: all_gather, reduce_scatter
                     ┌──────────────────────────────┐
    dp_replicate  ┌  rank 0: half of everything    rank 1: the other half    one machine
    all_reduce    │     │                             │
                  └  rank 2: as rank 0             rank 3: as rank 1         another machine

With ZeRO 3 over all ranks (zero3.py) every all_gather waits for the slowest link there is. Here the
large and frequent traffic stays within a group, where links are fast; across groups goes one
all_reduce per unit and step, of a rank's own part of the gradients.

What travels a step: within a group what ZeRO 3 sends, 5.0 MB; across, half of the gradients,
0.9 MB. What it costs: memory is cut by the group's size, 2, not by the number of ranks.

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.hsdp
"""

from __future__ import annotations

from torch.distributed.device_mesh import init_device_mesh

from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.sharding import train_sharded

SHARDS = 2
"""Ranks of a group that share one copy. On real machines: the GPUs of one."""


def train(world: World, options: Options) -> None:
    mesh = init_device_mesh(
        world.device.type, (world.size // SHARDS, SHARDS),
        mesh_dim_names=("dp_replicate", "dp_shard"),
    )  # fmt: skip
    train_sharded(world, options, mesh, reshard=True)


if __name__ == "__main__":
    main("hsdp", train)
