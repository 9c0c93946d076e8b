"""Layers that take time without using the CPU, as kernels on a device of their own would.

Four ranks on two cores get in each other's way: what one computes slows the others, and the bubbles
one measures are the machine's, not the schedule's. With paced blocks most of a rank's compute is
sleep, every rank gets its time, and the schedule shows. The numbers stay the same to the last bit.
A paced run says so: in its output and, when pardbg watches, on screen. On the simulated
accelerator nothing sleeps: a kernel of that length is launched.

Backward takes about twice as long as forward, as it computes two products for each one of forward:
the gradient of the layer's input, which the layers before it wait for, and that of its weights,
which only the optimizer needs. So the two sleep apart, and a schedule that runs them apart (I and
W of the zero-bubble schedules) finds time in both.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def spend(device: torch.device, seconds: float) -> None:
    """Sleep, so that the rank's compute takes longer."""
    if device.type == "sim":
        from pardbg.lab.sim import device as sim

        sim.spend(1e3 * seconds, "paced")
    elif seconds > 0:
        time.sleep(seconds)


class _Sleep(torch.autograd.Function):
    """Identity that returns its input late."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.backward_s = backward_s
        spend(x.device, forward_s)
        # A copy: torch detaches a stage's output in place, which a view would not allow.
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        spend(grads[0].device, ctx.backward_s)
        return grads[0], None, None


class Paced(nn.Module):
    """Layer that returns its input after ``pace_ms`` in forward, and the gradient after
    ``backward`` times as long."""

    def __init__(self, pace_ms: float, backward: float = 2.0) -> None:
        super().__init__()
        self.pace_s = pace_ms / 1e3
        self.backward = backward

    def forward(self, x: Tensor) -> Tensor:
        return _Sleep.apply(x, self.pace_s, self.backward * self.pace_s)

    def extra_repr(self) -> str:
        return f"pace_ms={self.pace_s * 1e3:g}"


class PacedLinear(nn.Linear):
    """A linear layer whose weight gradients take ``pace_ms`` longer."""

    def __init__(self, size_in: int, size_out: int, pace_ms: float) -> None:
        super().__init__(size_in, size_out)
        self.pace_s = pace_ms / 1e3

    def forward(self, x: Tensor) -> Tensor:
        # The bias's gradient comes by this way whenever weights' gradients are computed, and only
        # then.
        return F.linear(x, self.weight, _Sleep.apply(self.bias, 0.0, self.pace_s))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, pace_ms={self.pace_s * 1e3:g}"
