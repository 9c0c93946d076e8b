"""ZeRO 2: gradients and optimizer state are sharded; parameters are whole while a step needs them.

                     forward                        backward              between steps
    parameters  root 1 2 3 4 5 6 7 8 all held ─── 8 7 6 5 4 3 2 1 ───    1/4 on each rank
    gradients                          whole for one block, then 1/4
    Adam state                                                            1/4 on each rank

A block's parameters are gathered in forward and kept until its backward is through: no second
all_gather, but when forward ends all of them are there. After backward torch's fully_shard throws
them away all the same and gathers the updated ones in the next forward: in place of the all_gather
that ends a step in the ZeRO paper.

What travels a step: one all_gather (1.7 MB) and one reduce_scatter (1.7 MB): together what DDP's
all_reduce moves.

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.zero2
"""

from __future__ import annotations

from torch.distributed.device_mesh import init_device_mesh

from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.sharding import train_sharded


def train(world: World, options: Options) -> None:
    mesh = init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("dp_shard",))
    train_sharded(world, options, mesh, reshard=False)


if __name__ == "__main__":
    main("zero2", train)
