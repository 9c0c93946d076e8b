"""Kernels of stated length in a model's forward and backward."""

from __future__ import annotations

from typing import Any

import torch

import pardbg.lab.sim.device as sim


def spend_in(x: torch.Tensor, forward_ms: float, backward_ms: float, name: str = "") -> Any:
    """Return ``x``, with a kernel (``nameF``, ``nameB``) in its forward and in its backward."""
    apply: Any = _Spend.apply
    return apply(x, forward_ms, backward_ms, name)


class _Spend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, forward_ms: float, backward_ms: float, name: str) -> Any:
        ctx.backward_ms, ctx.name = backward_ms, name
        sim.spend(forward_ms, f"{name}F")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        sim.spend(ctx.backward_ms, f"{ctx.name}B")
        return grads[0], None, None, None
