"""Base of the faulty programs: the healthy ``ddp`` training, and when a fault strikes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pardbg.lab.recipes.data import Text
from pardbg.lab.recipes.launch import Options, World
from pardbg.lab.recipes.model import gpt, loss
from pardbg.lab.recipes.shape import BATCH

Batch = Callable[[int], tuple[Tensor, Tensor]]
"""(step) -> this rank's tokens and targets, two int64 tensors [BATCH / ranks, CONTEXT]."""
NUMBERS_PER_MIB = 2**20 // 4
"""Number of float32 values in a MiB."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Rank, step and size of the fault, from the options; a program without one of these options
    does not use it."""

    mine: bool
    """Whether this is the rank of ``--fault-rank``."""
    step: int
    size: float
    """Size of the fault, in the unit of the fault's option."""

    def now(self, step: int) -> bool:
        """Return whether this is the faulty rank, in the faulty step."""
        return self.mine and step == self.step

    def since(self, step: int) -> bool:
        """Return whether this is the faulty rank, in the faulty step or a later one."""
        return self.mine and step >= self.step


class Training:
    """The training of ``ddp.py`` in parts; a fault replaces one of them."""

    def __init__(self, world: World, options: Options) -> None:
        self.world, self.options = world, options
        own = options.own
        mine = world.rank == own.get("fault-rank")
        self.fault = Fault(mine, own.get("fault-step", 0), own.get("fault-size", 0))
        self.model = gpt(options.seed, options.pace_ms).to(world.device)
        self.replica = self.wrap(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr)
        self.batch = shares(world, options)
        self.begin()
        for step in range(options.steps):
            self.train_step(step)
        self.end()

    def train_step(self, step: int) -> None:
        tokens, targets = self.batch(step)
        tokens = self.before(step, tokens)
        error = self.error(step, self.replica(tokens), targets)
        self.optimizer.zero_grad()
        error.backward()
        self.update(step)
        self.after(step, error)

    def wrap(self, model: nn.Sequential) -> nn.Module:
        return DistributedDataParallel(model, bucket_cap_mb=0.5)

    def begin(self) -> None:
        """Prepare training, before the first step."""

    def before(self, step: int, tokens: Tensor) -> Tensor:
        """Prepare a step, before forward; return the tokens to use."""
        return tokens

    def error(self, step: int, scores: Tensor, targets: Tensor) -> Tensor:
        """Return the loss from which backward starts."""
        return loss(scores, targets)

    def update(self, step: int) -> None:
        """Update the parameters, after backward."""
        self.optimizer.step()

    def after(self, step: int, error: Tensor) -> None:
        """Finish a step."""
        self.world.report_mean(step, error)

    def end(self) -> None:
        """Finish training, after the last step."""


def shares(world: World, options: Options) -> Batch:
    """Return this rank's share of each step's batch; shares of all ranks are equal."""
    text, size = Text(options.seed, world.device), BATCH // world.size
    mine = slice(world.rank * size, (world.rank + 1) * size)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        tokens, targets = text.batch(step)
        return tokens[mine], targets[mine]

    return batch
