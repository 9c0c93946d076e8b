"""Faults of a single rank: its numbers, its memory, its end."""

from __future__ import annotations

import os
import signal

import torch
from torch import Tensor
from torch.nn import functional as F

from pardbg.lab.recipes.faults.planted import NUMBERS_PER_MIB, Training
from pardbg.lab.recipes.shape import VOCABULARY


class Nan(Training):
    """Fault: one rank's loss becomes NaN, and a step later all ranks' weights are NaN."""

    def error(self, step: int, scores: Tensor, targets: Tensor) -> Tensor:
        counts = torch.ones_like(targets, dtype=torch.float32)
        if self.fault.now(step):
            counts.zero_()  # FAULT: padding only
        each = F.cross_entropy(scores.transpose(1, 2), targets, reduction="none")
        return (each * counts).sum() / counts.sum()


class Diverge(Training):
    """Fault: one replica's weights drift away from the others'."""

    def update(self, step: int) -> None:
        if self.fault.now(step):
            self.optimizer.param_groups[0]["lr"] *= self.fault.size  # FAULT: on this rank alone
        self.optimizer.step()


class MemoryCreep(Training):
    """Fault: one rank's memory grows with every step."""

    def begin(self) -> None:
        self.kept: list[Tensor] = []

    def error(self, step: int, scores: Tensor, targets: Tensor) -> Tensor:
        self.scores = scores
        return super().error(step, scores, targets)

    def after(self, step: int, error: Tensor) -> None:
        if self.fault.since(step):
            # FAULT: never emptied
            more = torch.ones(int(self.fault.size) * NUMBERS_PER_MIB, device=error.device)
            self.kept += [self.scores.detach(), more]
        self.world.report_mean(step, error)

    def end(self) -> None:
        self.world.say(f"kept {sum(tensor.nbytes for tensor in self.kept)} bytes of outputs")


class MemoryImbalance(Training):
    """Fault: one rank uses much more memory than its peers."""

    def begin(self) -> None:
        self.features = torch.empty(0)

    def before(self, step: int, tokens: Tensor) -> Tensor:
        if self.fault.now(step):
            # FAULT: on this rank alone
            size = int(self.fault.size) * NUMBERS_PER_MIB
            self.features = torch.ones(size, device=tokens.device)
        return tokens

    def end(self) -> None:
        self.world.say(f"kept {self.features.nbytes} bytes of features")


class UncaughtError(Training):
    """Fault: one rank raises an exception."""

    def before(self, step: int, tokens: Tensor) -> Tensor:
        # FAULT: no such token; Embedding raises IndexError
        return tokens + VOCABULARY if self.fault.now(step) else tokens


class Kill(Training):
    """Fault: one rank dies without a message."""

    def error(self, step: int, scores: Tensor, targets: Tensor) -> Tensor:
        if self.fault.now(step):
            os.kill(os.getpid(), signal.SIGKILL)  # FAULT: out of memory, says the kernel
        return super().error(step, scores, targets)
