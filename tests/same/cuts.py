"""Tensor, sequence and expert parallelism by hand: what a rank has of each layer, and the ops
between. Each op has a switch that leaves it out, as a programmer would."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import pardbg_agent


class Tp:
    """A rank's place in tensor parallelism. ``said``: the program tells pardbg what it cuts."""

    def __init__(self, group: Any = None, said: bool = True) -> None:
        self.group, self.said = group, said
        self.size = dist.get_world_size(group) if group is not None else 1
        self.at = dist.get_rank(group) if group is not None else 0

    def part(self, whole: Tensor, dim: int) -> nn.Parameter:
        """A rank's slice of a parameter, told to pardbg."""
        if self.size == 1:
            return nn.Parameter(whole)
        mine = nn.Parameter(whole.chunk(self.size, dim)[self.at].clone())
        offset = [self.at * mine.shape[d] if d == dim else 0 for d in range(whole.dim())]
        if self.said:
            pardbg_agent.layout(mine, whole.shape, offset)
        return mine


class _Copy(torch.autograd.Function):
    """Forward nothing, backward the sum over the group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Reduce(torch.autograd.Function):
    """Forward the sum over the group, backward nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


class _Gather(torch.autograd.Function):
    """Forward all positions of the group's, backward the rank's positions of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: Tp, summed: bool) -> Tensor:
        ctx.tp, ctx.summed = tp, summed
        parts = [torch.empty_like(x) for _ in range(tp.size)]
        dist.all_gather(parts, x.contiguous(), group=tp.group)
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        grad = grad.clone()
        if ctx.summed:
            dist.all_reduce(grad, group=ctx.tp.group)
        return grad.chunk(ctx.tp.size, 1)[ctx.tp.at].contiguous(), None, None


class _Scatter(torch.autograd.Function):
    """Forward the rank's positions of the sum, backward all positions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: Tp) -> Tensor:
        ctx.tp = tp
        x = x.clone()
        dist.all_reduce(x, group=tp.group)
        return x.chunk(tp.size, 1)[tp.at].contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        parts = [torch.empty_like(grad) for _ in range(ctx.tp.size)]
        dist.all_gather(parts, grad.contiguous(), group=ctx.tp.group)
        return torch.cat(parts, 1), None


def copied(x: Tensor, tp: Tp, positions: bool, fault: bool = False) -> Tensor:
    """What a column-parallel layer gets. ``positions``: ranks have some of them (sequence
    parallelism)."""
    if tp.size == 1:
        return x
    if positions:
        return _Gather.apply(x, tp, not fault)
    return x if fault else _Copy.apply(x, tp.group)


def reduced(x: Tensor, tp: Tp, positions: bool, fault: str = "") -> Tensor:
    """What a row-parallel layer gives."""
    if tp.size == 1 or fault == "none":
        return x.chunk(tp.size, 1)[tp.at] if positions and tp.size > 1 else x
    if fault == "twice":
        return _Reduce.apply(_Reduce.apply(x, tp.group), tp.group)
    return _Scatter.apply(x, tp) if positions else _Reduce.apply(x, tp.group)


class Cut(nn.Linear):
    """A linear layer of which a rank has rows (dim 0) or columns (dim 1) of the weight."""

    def __init__(self, wide: int, out: int, tp: Tp, dim: int) -> None:
        super().__init__(wide, out, bias=False)
        self.weight = tp.part(torch.randn(out, wide) * wide**-0.5, dim)
