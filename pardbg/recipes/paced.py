"""A layer that takes time without using the CPU, as a kernel on a device of its own would.

Four ranks on two cores get in each other's way: what one computes slows the others, and the bubbles
one measures are the machine's, not the schedule's. With paced blocks most of a rank's compute is
sleep, every rank gets its time, and the schedule shows. The numbers stay the same to the last bit.
A paced run says so: in its output and, when pardbg watches, on screen.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

BACKWARD = 2.0
"""Backward takes about twice as long as forward: it computes two products for each one."""


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pace_s: float) -> Tensor:
        ctx.pace_s = pace_s
        time.sleep(pace_s)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        # The first thing that the backward of what stands before this layer runs.
        time.sleep(BACKWARD * ctx.pace_s)
        return grads[0], None


class Paced(nn.Module):
    """Passes its input on after ``pace_ms`` in forward, and the gradient after twice that."""

    def __init__(self, pace_ms: float) -> None:
        super().__init__()
        self.pace_s = pace_ms / 1e3

    def forward(self, x: Tensor) -> Tensor:
        return _Sleep.apply(x, self.pace_s)

    def extra_repr(self) -> str:
        return f"pace_ms={self.pace_s * 1e3:g}"
