"""Data parallel with batch norm: its mean and variance are the whole batch's, not a share's."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pardbg.lab.recipes.data import batches
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import gpt, loss
from pardbg.lab.recipes.shape import WIDTH

BEHIND_BLOCK = 4


class _AllReduce(torch.autograd.Function):
    """Sum over all ranks. Every rank's loss depends on the sum, so its gradient is the sum over all
    ranks of the gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].clone()
        dist.all_reduce(total)
        return total


class SyncedBatchNorm(nn.BatchNorm1d):
    """BatchNorm over all ranks' inputs [batch, channels, time], of equal size on each; only for
    training, so without running statistics for evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        count = x.numel() // x.shape[1] * dist.get_world_size()
        sums = torch.stack([x.sum((0, 2)), x.square().sum((0, 2))])
        mean, square = _AllReduce.apply(sums) / count
        variance = square - mean.square()
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (x - mean[:, None]) * scale[:, None] + self.bias[:, None]


class OverChannels(nn.Module):
    """Adapter to batch norm's order: [batch, time, WIDTH] to [batch, WIDTH, time] and back."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


def gpt_with_batch_norm(world: World, options: Options) -> nn.Module:
    """The GPT and one batch norm. One rank alone has the whole batch: torch's plain BatchNorm1d.
    torch's SyncBatchNorm has kernels for CUDA alone."""
    on_cuda = world.device.type == "cuda"
    kind = nn.BatchNorm1d if world.size == 1 or on_cuda else SyncedBatchNorm
    parts = list(gpt(options.seed, options.pace_ms))
    norm = OverChannels(kind(WIDTH, track_running_stats=False))
    parts.insert(1 + BEHIND_BLOCK, norm)  # part 0 is the embedding
    model: nn.Module = nn.Sequential(*parts).to(world.device)
    if world.size > 1 and on_cuda:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return model


def train(world: World, options: Options) -> None:
    model = DistributedDataParallel(gpt_with_batch_norm(world, options), bucket_cap_mb=0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)

    for step, tokens, targets in batches(world, options):
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()

        world.report_mean(step, error)


if __name__ == "__main__":
    main("ddp-syncbn", train)
