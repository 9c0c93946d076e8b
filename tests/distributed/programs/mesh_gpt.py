"""A small GPT on a mesh of any size: data parallel × pipeline × tensor parallel.

    pardbg rehearse --world-size 1024 -- python tests/distributed/programs/mesh_gpt.py --pp 8 --tp 4

Tensor parallelism is written out as Megatron does it, or with ``--dtensor`` is torch's.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional as F

from pardbg.lab.recipes.model import Embedding, Head, gpt, loss, stage
from pardbg.lab.recipes.pipeline import run_schedule
from pardbg.lab.recipes.shape import BLOCKS, CONTEXT, HEADS, VOCABULARY, WIDTH


class Into(torch.autograd.Function):
    """What all ranks of a tp group take in: its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class OutOf(torch.autograd.Function):
    """The sum of what they make."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class CutBlock(nn.Module):
    """One of ``tp`` parts of a block."""

    def __init__(self, group: dist.ProcessGroup, tp: int) -> None:
        super().__init__()
        self.group, self.heads = group, HEADS // tp
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH // tp)
        self.out = nn.Linear(WIDTH // tp, WIDTH, bias=False)
        self.widen = nn.Linear(WIDTH, 4 * WIDTH // tp)
        self.narrow = nn.Linear(4 * WIDTH // tp, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(Into.apply(self.norm1(x), self.group))
        q, k, v = heads.unflatten(-1, (3, self.heads, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + OutOf.apply(self.out(seen.transpose(1, 2).flatten(2)), self.group)
        wide = F.gelu(self.widen(Into.apply(self.norm2(x), self.group)))
        return x + OutOf.apply(self.narrow(wide), self.group)


def cut_stage(index: int, pp: int, tp: int, group: dist.ProcessGroup) -> nn.Sequential:
    blocks = [CutBlock(group, tp) for _ in range(BLOCKS // pp)]
    before = [Embedding()] if index == 0 else []
    behind = [Head()] if index == pp - 1 else []
    return nn.Sequential(*before, *blocks, *behind)


def average(part: nn.Module, group: dist.ProcessGroup) -> None:
    """The gradients over the replicas of a stage, in one bucket."""
    grads = [p.grad for p in part.parameters() if p.grad is not None]
    flat = torch.cat([getattr(g, "_local_tensor", g).flatten() for g in grads])
    dist.all_reduce(flat, group=group)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pp", type=int, default=2)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--dtensor", action="store_true")
    given = parser.parse_args()

    dist.init_process_group("gloo")
    shape = (dist.get_world_size() // (given.pp * given.tp), given.pp, given.tp)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "pp", "tp"))
    index = mesh["pp"].get_local_rank()
    first, last = index == 0, index == given.pp - 1
    if given.dtensor:
        from pardbg.lab.recipes.tp import parallelize

        part: nn.Module = stage(gpt(0), index, given.pp)
        parallelize(part, mesh["tp"])
    else:
        part = cut_stage(index, given.pp, given.tp, mesh["tp"].get_group())
    pipe = PipelineStage(part, index, given.pp, torch.device("cpu"), group=mesh["pp"].get_group())
    schedule = Schedule1F1B(pipe, given.microbatches, loss_fn=loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=1e-3)
    tokens = torch.randint(VOCABULARY, (given.microbatches, CONTEXT))
    for _ in range(given.steps):
        optimizer.zero_grad()
        run_schedule(schedule, tokens if first else None, tokens if last else None)
        average(part, mesh["dp"].get_group())
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
