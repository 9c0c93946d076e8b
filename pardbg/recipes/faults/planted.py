"""What the faulty programs share: the healthy ``ddp`` training, and when a fault strikes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pardbg.recipes.data import Text
from pardbg.recipes.launch import Options, World
from pardbg.recipes.model import gpt
from pardbg.recipes.shape import BATCH

Batch = Callable[[int], tuple[Tensor, Tensor]]
"""Step in; this rank's tokens and targets out, two int64 tensors [BATCH / ranks, CONTEXT]."""


@dataclass(frozen=True, slots=True)
class Fault:
    """When this rank does what it should not."""

    mine: bool
    """This is the rank that ``--fault-rank`` names."""
    step: int
    size: float
    """How much, in the unit that the fault's option says."""

    def now(self, step: int) -> bool:
        """On the faulty rank, in the one step."""
        return self.mine and step == self.step

    def since(self, step: int) -> bool:
        """On the faulty rank, in that step and all that follow."""
        return self.mine and step >= self.step


def planted(world: World, options: Options) -> Fault:
    """The fault as ``--fault-rank``, ``--fault-step`` and ``--fault-size`` ask for it; a program
    without one of these options does not look at it."""
    own = options.own
    mine = world.rank == own.get("fault-rank")
    return Fault(mine, own.get("fault-step", 0), own.get("fault-size", 0))


def ddp(world: World, options: Options) -> tuple[DistributedDataParallel, Optimizer, Batch]:
    """Model, optimizer and batches as in ``ddp.py``."""
    model = DistributedDataParallel(
        gpt(options.seed, options.pace_ms).to(world.device), bucket_cap_mb=0.5
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    return model, optimizer, shares(world, options)


def shares(world: World, options: Options) -> Batch:
    """This rank's share of each step's batch."""
    text = Text(options.seed, world.device)
    share = BATCH // world.size
    mine = slice(world.rank * share, (world.rank + 1) * share)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        tokens, targets = text.batch(step)
        return tokens[mine], targets[mine]

    return batch


def report_mean(world: World, step: int, error: Tensor) -> None:
    """Average the ranks' losses for people to read, as the last lines of ``ddp.py`` do."""
    mean = error.detach()
    dist.all_reduce(mean)
    if world.rank == 0:
        world.report(step, mean.item() / world.size)
