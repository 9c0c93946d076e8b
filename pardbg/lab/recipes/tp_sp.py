"""Tensor parallel with sequence parallel norms: between the matrices each rank has some positions.

            its positions │ all positions, its head  │ its positions │ all positions, its quarter
    rank 0: 0-15    norm1 │                          │ 0-15    norm2 │
    rank 1: 16-31   norm1 │ all_gather    attention  │ 16-31   norm2 │ all_gather    MLP
    rank 2: 32-47   norm1 │          reduce_scatter  │ 32-47   norm2 │    reduce_scatter   ─► 32-47
    rank 3: 48-63   norm1 │                          │ 48-63   norm2 │

With plain tensor parallelism (tp.py) every rank keeps whole activations between the matrices and
computes all norms: n times the same. Here a rank keeps its share of the positions. Before a matrix
all_gather brings the positions together; behind it reduce_scatter adds up the partial sums and
leaves each rank its positions of the result.

What travels: an all_reduce is a reduce_scatter and an all_gather, so these are the same bytes as in
tp.py: forward 2 of each per block, 256 KiB, backward 2 of each. What it gains is memory: what norms
and residuals hold is n times less. What it adds: a norm's 64 weights saw only some positions, so
their gradients are added up over the ranks: 34 all_reduces of 256 bytes.

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.tp_sp
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from pardbg.lab.recipes.data import Text
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import Block, gpt, loss
from pardbg.lab.recipes.tp import heads_to_ranks

POSITIONS = Shard(1)
"""Activations are [batch, time, WIDTH]: cut along time."""


def parallelize(model: nn.Sequential, mesh: DeviceMesh) -> None:
    """Cut the whole model over the ranks of a 1-D mesh."""
    embedding, *blocks, head = model
    # Embedding computes all positions on every rank and each keeps its own: cutting is free, and
    # in backward an all_gather gives everybody the gradients of all positions.
    cut = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=POSITIONS)
    parallelize_module(embedding, mesh, cut, src_data_rank=None)
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
        parallelize_module(block, mesh, plan, src_data_rank=None)
    # The head is cut by columns: each rank scores 64 of the 256 bytes, for all positions. The loss
    # wants them all: one more all_gather, of 1 MiB. (torch's loss_parallel would do without.)
    plan = {
        "norm": SequenceParallel(use_local_output=True),
        "scores": ColwiseParallel(input_layouts=POSITIONS, output_layouts=Replicate()),
    }
    parallelize_module(head, mesh, plan, src_data_rank=None)


def complete(model: nn.Sequential) -> None:
    """A norm's gradient on a rank is the part of its positions: add the parts up, once.

    DTensor knows that they are parts and would add them up by itself, but each time the optimizer
    looks: three times a step.
    """
    for parameter in model.parameters():
        grad = parameter.grad
        if isinstance(grad, DTensor) and grad.placements[0].is_partial():
            parameter.grad = grad.redistribute(placements=[Replicate()])


def train(world: World, options: Options) -> None:
    mesh = init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("tp",))
    model = gpt(options.seed, options.pace_ms).to(world.device)
    parallelize(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, foreach=False)
    text = Text(options.seed, world.device)

    for step in range(options.steps):
        tokens, targets = text.batch(step)  # the whole batch, on each rank
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        complete(model)
        optimizer.step()
        if world.rank == 0:
            world.report(step, error.item())


if __name__ == "__main__":
    main("tp-sp", train)
