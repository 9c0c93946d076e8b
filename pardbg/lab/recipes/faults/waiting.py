"""Ranks that wait for each other, or for a message that never comes (see ``missing_rank.py``)."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from pardbg.lab.recipes.faults.planted import Training


class GroupOrder(Training):
    """Fault: one rank issues two groups' collectives in the other order: a deadlock."""

    def begin(self) -> None:
        # A new group has torch's half hour, whatever the first one was given.
        limit = timedelta(seconds=self.options.own["timeout-s"])
        self.losses = cast(dist.ProcessGroup, dist.new_group(timeout=limit, group_desc="losses"))
        self.guesses = cast(dist.ProcessGroup, dist.new_group(timeout=limit, group_desc="guesses"))

    def error(self, step: int, scores: Tensor, targets: Tensor) -> Tensor:
        self.right = (scores.argmax(dim=-1) == targets).float().mean()
        return super().error(step, scores, targets)

    def after(self, step: int, error: Tensor) -> None:
        mean, right = error.detach(), self.right
        if self.fault.now(step):
            dist.all_reduce(right, group=self.guesses)  # FAULT: guesses before losses
            dist.all_reduce(mean, group=self.losses)
        else:
            dist.all_reduce(mean, group=self.losses)
            dist.all_reduce(right, group=self.guesses)
        if self.world.rank == 0:
            self.world.report(step, mean.item() / self.world.size)


class P2PCycle(Training):
    """Fault: ranks in a ring all receive before they send, so each waits for the one before it."""

    def begin(self) -> None:
        own, size = self.options.own, self.world.size
        self.ring = [(own["fault-rank"] + i) % size for i in range(own["fault-size"] or size)]

    def after(self, step: int, error: Tensor) -> None:
        total = error.detach()
        if self.world.rank in self.ring:
            self.exchange(total, receive_first=step == self.fault.step)
        self.world.report_mean(step, total)

    def exchange(self, mine: Tensor, receive_first: bool) -> Tensor:
        """Send this rank's number to the next rank of the ring; return the previous rank's."""
        me = self.ring.index(self.world.rank)
        after, before = self.ring[(me + 1) % len(self.ring)], self.ring[me - 1]
        theirs = torch.empty_like(mine)
        if receive_first:
            dist.recv(theirs, before)  # FAULT: no rank has sent anything yet
            dist.send(mine, after)
        else:
            sent = dist.isend(mine, after)
            dist.recv(theirs, before)
            assert sent is not None  # None: this rank is not in the group
            sent.wait()
        return theirs


class UnpairedSend(Training):
    """Fault: a rank sends a message that no rank receives."""

    def after(self, step: int, error: Tensor) -> None:
        if self.fault.now(step):
            # FAULT: the next rank has no recv for this
            dist.send(error.detach(), (self.world.rank + 1) % self.world.size)
        self.world.report_mean(step, error)


class UnpairedRecv(Training):
    """Fault: a rank receives a message that no rank sends."""

    def after(self, step: int, error: Tensor) -> None:
        if self.fault.now(step):
            theirs = torch.empty_like(error)
            # FAULT: the next rank has no send for this
            dist.recv(theirs, (self.world.rank + 1) % self.world.size)
        self.world.report_mean(step, error)
