"""ZeRO 3: parameters, gradients and optimizer state sharded; a block is whole while it computes.

    forward    root ════════════════════════════ …      backward  root ════════════════════════
               1 ══                                               8 ════
                 2 ══                                               7 ════
                   3 ══                                               6 ════   while one computes,
                     4 ══                                               5 ════ the next is fetched

A block's parameters are gathered, used and thrown away, in forward and once more in backward. So a
rank holds its quarter of everything, and beyond that the root and one or two blocks at a time: a
model n times too large for one rank trains. The price is traffic: 8 blocks are gathered twice.

What travels a step: 3.3 MB of all_gather (17 of them) and 1.7 MB of reduce_scatter (9): half as
much again as DDP.

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.zero3
"""

from __future__ import annotations

from torch.distributed.device_mesh import init_device_mesh

from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.sharding import train_sharded


def train(world: World, options: Options) -> None:
    mesh = init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("dp_shard",))
    train_sharded(world, options, mesh, reshard=True)


if __name__ == "__main__":
    main("zero3", train)
