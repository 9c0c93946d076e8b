"""Tensor parallel: every matrix is cut, and all ranks work on the same sequences."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from pardbg.lab.recipes.data import WHOLE, batches
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import Block, gpt, loss

_CAN_KEEP: Final = "src_data_rank" in signature(parallelize_module).parameters
KEEP_OWN: Final[dict[str, Any]] = {"src_data_rank": None} if _CAN_KEEP else {}
"""Options to shard local weights: every rank made the same weights from the seed and keeps its
part. Otherwise rank 0 would send them, as it does before torch 2.7."""


def parallelize(model: nn.Sequential, mesh: DeviceMesh) -> None:
    """Shard the blocks of a model, or of a stage of it, over the ranks of a 1-D mesh."""
    for block in model:
        if isinstance(block, Block):
            heads_to_ranks(block.attention.qkv, mesh.size())
            plan = {
                "attention.qkv": ColwiseParallel(),
                "attention.out": RowwiseParallel(),
                "mlp.0": ColwiseParallel(),
                "mlp.2": RowwiseParallel(),
            }
            parallelize_module(block, mesh, plan, **KEEP_OWN)


def heads_to_ranks(qkv: nn.Linear, num_ranks: int) -> None:
    """Order the rows so that equal shares of them are whole heads.

    By default all heads' queries come first, then all keys, then all values, and the first quarter
    would be queries alone. Afterwards the queries, keys and values of rank 0's heads come first,
    then rank 1's: each share is like a smaller qkv. The numbers do not change, only their places.
    """
    with torch.no_grad():
        for part in (qkv.weight, qkv.bias):
            part.copy_(part.unflatten(0, (3, num_ranks, -1)).transpose(0, 1).flatten(0, 2))


def train_cut(
    world: World, options: Options, cut: Callable[[nn.Sequential, DeviceMesh], None],
    complete: Callable[[nn.Sequential], None] = lambda _model: None,
) -> None:  # fmt: skip
    """Train a model that ``cut`` shards over all ranks; ``complete`` its gradients."""
    mesh = init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("tp",))
    model = gpt(options.seed, options.pace_ms).to(world.device)
    cut(model, mesh)
    # Embedding, norms and head are whole on every rank. All ranks see the same sequences and the
    # same sums, so their gradients are equal, and so they stay, without a word.
    # Plain tensors beside DTensors: one at a time, they cannot be updated in one batch.
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, foreach=False)

    for step, tokens, targets in batches(world, options, WHOLE):  # the whole batch, on each rank
        error = loss(model(tokens), targets)  # 2 all_reduces in each block
        optimizer.zero_grad()
        error.backward()  # and 2 more
        complete(model)
        optimizer.step()  # no traffic: each rank updates what it has
        if world.rank == 0:
            world.report(step, error.item())  # every rank has the whole loss


def train(world: World, options: Options) -> None:
    train_cut(world, options, parallelize)


if __name__ == "__main__":
    main("tp", train)
