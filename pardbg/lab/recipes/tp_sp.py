"""Tensor parallel with sequence parallel norms: between matrices a rank has some positions."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import Block
from pardbg.lab.recipes.tp import KEEP_OWN, heads_to_ranks, train_cut

POSITIONS = Shard(1)
"""Sharding of activations [batch, time, WIDTH] along time."""


def parallelize(model: nn.Sequential, mesh: DeviceMesh) -> None:
    """Shard the whole model over the ranks of a 1-D mesh."""
    embedding, *blocks, head = model
    # Embedding computes all positions on every rank and each keeps its own: cutting is free, and
    # in backward an all_gather gives everybody the gradients of all positions.
    cut = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=POSITIONS)
    parallelize_module(embedding, mesh, cut, **KEEP_OWN)
    for block in blocks:
        assert isinstance(block, Block)
        heads_to_ranks(block.attention.qkv, mesh.size())
        plan = {
            "norm1": SequenceParallel(use_local_output=True),
            "attention.qkv": ColwiseParallel(input_layouts=POSITIONS),
            "attention.out": RowwiseParallel(output_layouts=POSITIONS),
            "norm2": SequenceParallel(use_local_output=True),
            "mlp.0": ColwiseParallel(input_layouts=POSITIONS),
            "mlp.2": RowwiseParallel(output_layouts=POSITIONS),
        }
        parallelize_module(block, mesh, plan, **KEEP_OWN)
    # The head is cut by columns: each rank scores 64 of the 256 bytes, for all positions. The loss
    # wants them all: one more all_gather, of 1 MiB. (torch's loss_parallel would do without.)
    plan = {
        "norm": SequenceParallel(use_local_output=True),
        "scores": ColwiseParallel(input_layouts=POSITIONS, output_layouts=Replicate()),
    }
    parallelize_module(head, mesh, plan, **KEEP_OWN)


def complete(model: nn.Sequential) -> None:
    """Sum the parts of the norms' gradients, of which each rank has its positions' part.

    DTensor would sum partial gradients by itself, but at each access of the optimizer: three times
    a step.
    """
    for parameter in model.parameters():
        grad = parameter.grad
        if isinstance(grad, DTensor) and grad.placements[0].is_partial():
            parameter.grad = grad.redistribute(placements=[Replicate()])


def train(world: World, options: Options) -> None:
    train_cut(world, options, parallelize, complete)


if __name__ == "__main__":
    main("tp-sp", train)
