"""Faults of ranks that pass different arguments to one collective."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from pardbg.lab.recipes.faults.planted import Training


class MismatchOp(Training):
    """Fault: one rank calls another collective than the others."""

    def after(self, step: int, error: Tensor) -> None:
        mean = error.detach()
        if self.fault.now(step):
            dist.reduce(mean, dst=0)  # FAULT: reduce here, all_reduce on every other rank
        else:
            dist.all_reduce(mean)
        if self.world.rank == 0:
            self.world.report(step, mean.item() / self.world.size)


class MismatchShape(Training):
    """Fault: one rank passes a smaller tensor to a collective than the others."""

    def error(self, step: int, scores: Tensor, targets: Tensor) -> Tensor:
        self.each = F.cross_entropy(scores.transpose(1, 2), targets, reduction="none").mean(dim=1)
        return self.each.mean()

    def after(self, step: int, error: Tensor) -> None:
        mine = self.each.detach()
        if self.fault.now(step):
            mine = mine[:-1].clone()  # FAULT: one sequence less than every other rank
        all_ranks = [torch.empty_like(mine) for _ in range(self.world.size)]
        dist.all_gather(all_ranks, mine)
        if self.world.rank == 0:
            self.world.report(step, torch.cat(all_ranks).mean().item())


class MismatchDtype(Training):
    """Fault: one rank passes another data type, of as many bytes, which raises no error."""

    def error(self, step: int, scores: Tensor, targets: Tensor) -> Tensor:
        self.num_tokens = targets.numel()
        return super().error(step, scores, targets)

    def after(self, step: int, error: Tensor) -> None:
        # FAULT: int32 on one rank
        number = torch.int32 if self.fault.since(step) else torch.float32
        count = torch.tensor(self.num_tokens, dtype=number, device=self.world.device)
        total = error.detach() * self.num_tokens
        dist.all_reduce(total)
        dist.all_reduce(count)
        if self.world.rank == 0:
            self.world.report(step, (total / count).item())


class MismatchRoot(Training):
    """Fault: one rank broadcasts from itself, the others wait for rank 0."""

    def before(self, step: int, tokens: Tensor) -> Tensor:
        rate = torch.tensor(self.options.lr)
        # FAULT: one rank names itself
        dist.broadcast(rate, src=(self.world.rank or 1) if self.fault.now(step) else 0)
        self.optimizer.param_groups[0]["lr"] = rate.item()
        return tokens
