"""Tensor parallel: every matrix is cut, and all ranks work on the same sequences.

           ┌ qkv   rank 0: head 0 ┐            ┌ widen   rank 0: columns 0-63    ┐
    x ─┬─► │       rank 1: head 1 │ out ─ Σ ─► │         rank 1: columns 64-127  │ narrow ─ Σ ─►
       │   │       rank 2: head 2 │ (rows)     │         rank 2: columns 128-191 │ (rows)
       │   └       rank 3: head 3 ┘            └         rank 3: columns 192-255 ┘
       └─ the same x on every rank

The first matrix of a pair is cut by columns, so each rank makes some of the numbers in between
(whole heads; some of the MLP's 256) without asking anybody. The second one is cut by rows: it takes
just those numbers and gives each rank a part of the terms of a sum. One all_reduce adds them up.
Backward is the mirror image: one all_reduce where x went in.

What travels: 2 all_reduces per block forward and 2 backward, each as large as what flows between
blocks: 16 sequences × 64 positions × 64 numbers × 4 bytes = 256 KiB, 8 MiB a step for 8 blocks. It
grows with the batch, and nothing can be computed meanwhile: the next layer wants the sum. So tensor
parallelism stays inside a machine, where links are fast. What it gains: weights, their gradients
and optimizer states are cut too, and one sequence is computed faster.

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.tp
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from pardbg.lab.recipes.data import Text
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import Block, gpt, loss


def parallelize(model: nn.Sequential, mesh: DeviceMesh) -> None:
    """Cut the blocks of a model, or of a stage of it, over the ranks of a 1-D mesh."""
    for block in model:
        if isinstance(block, Block):
            heads_to_ranks(block.attention.qkv, mesh.size())
            plan = {
                "attention.qkv": ColwiseParallel(),
                "attention.out": RowwiseParallel(),
                "mlp.0": ColwiseParallel(),
                "mlp.2": RowwiseParallel(),
            }
            # None: every rank made the same weights from the seed and keeps its part of them.
            # Rank 0 would send them out otherwise.
            parallelize_module(block, mesh, plan, src_data_rank=None)


def heads_to_ranks(qkv: nn.Linear, num_ranks: int) -> None:
    """Order the rows so that equal shares of them are whole heads.

    As it is made, all heads' queries come first, then all keys, then all values, and the first
    quarter would be queries alone. Afterwards it is the queries, keys and values of rank 0's heads,
    then rank 1's: each share looks like a smaller qkv. The same numbers, in other places.
    """
    with torch.no_grad():
        for part in (qkv.weight, qkv.bias):
            part.copy_(part.unflatten(0, (3, num_ranks, -1)).transpose(0, 1).flatten(0, 2))


def train(world: World, options: Options) -> None:
    mesh = init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("tp",))
    model = gpt(options.seed, options.pace_ms).to(world.device)
    parallelize(model, mesh)
    # Embedding, norms and head are whole on every rank. All ranks see the same sequences and the
    # same sums, so their gradients are equal, and so they stay, without a word.
    # Plain tensors beside DTensors: one at a time, they cannot be updated in one batch.
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, foreach=False)
    text = Text(options.seed, world.device)

    for step in range(options.steps):
        tokens, targets = text.batch(step)  # the whole batch, on each rank
        error = loss(model(tokens), targets)  # 2 all_reduces in each block
        optimizer.zero_grad()
        error.backward()  # and 2 more
        optimizer.step()  # no traffic: each rank updates what it has
        if world.rank == 0:
            world.report(step, error.item())  # every rank has the whole loss


if __name__ == "__main__":
    main("tp", train)
