"""Ranks that wait for each other, or for what nobody does. (One more: ``missing_rank.py``.)"""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from pardbg.lab.recipes.faults.planted import Training


class GroupOrder(Training):
    """One rank takes two groups' collectives the other way round: a deadlock over two groups.

    What is wrong: losses and correct guesses are averaged in two process groups, first one, then
    the other. In one step one rank begins with the other. Within each group the order is right, so
    looking at one group at a time shows nothing but a rank that is late.

    What happens: the rank waits in one group for all others, and all others wait in the other group
    for it. Gloo raises after ``--timeout-s`` in both.

    What pardbg says: deadlock: the cycle of who waits for whom, through which groups, and the place
    in the program where each stands.

        pardbg demo fault:group-order --fault-rank 2 --fault-step 5
    """

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
    """Ranks in a ring all receive before they send: each waits for the one before it.

    What is wrong: neighbours exchange a number round a ring (``--fault-size`` ranks from ``--fault-
    rank`` on; 0: all). Healthy, each rank starts its send, receives, and then waits for the send.
    In one step all of them receive first.

    What happens: every rank of the ring waits for a send that its neighbour would start after its
    own receive. Gloo raises after ``--timeout-s``.

    What pardbg says: deadlock: the ring of receives, rank by rank. Ranks outside the ring wait too,
    in the next step's all_reduce, and are not blamed.

        pardbg demo fault:p2p-cycle --fault-size 3 --fault-rank 1 --fault-step 5
    """

    def begin(self) -> None:
        own, size = self.options.own, self.world.size
        self.ring = [(own["fault-rank"] + i) % size for i in range(own["fault-size"] or size)]

    def after(self, step: int, error: Tensor) -> None:
        total = error.detach()
        if self.world.rank in self.ring:
            self.exchange(total, receive_first=step == self.fault.step)
        self.world.report_mean(step, total)

    def exchange(self, mine: Tensor, receive_first: bool) -> Tensor:
        """My number to the next rank of the ring; the one of the rank before me comes back."""
        me = self.ring.index(self.world.rank)
        after, before = self.ring[(me + 1) % len(self.ring)], self.ring[me - 1]
        theirs = torch.empty_like(mine)
        if receive_first:
            dist.recv(theirs, before)  # FAULT: nobody has sent anything yet
            dist.send(mine, after)
        else:
            sent = dist.isend(mine, after)
            dist.recv(theirs, before)
            assert sent is not None  # None: this rank is not in the group
            sent.wait()
        return theirs


class UnpairedSend(Training):
    """A rank sends what nobody receives.

    What is wrong: in one step one rank finds a sample worth a second look and sends its loss to the
    rank after it. The other side of that was never written.

    What happens: gloo hands a tensor over only when the receiver is there, so the send waits, and
    the other ranks wait in the all_reduce behind it until gloo raises after ``--timeout-s``. NCCL
    is the same. (With isend and no wait the program would go on, and the next real message between
    the two would be paired with this one.)

    What pardbg says: an unpaired send, from which rank to which, since when, and the place in the
    program. The receiving rank waits in a collective like all others.

        pardbg demo fault:unpaired-send --fault-rank 2 --fault-step 5
    """

    def after(self, step: int, error: Tensor) -> None:
        if self.fault.now(step):
            # FAULT: the next rank has no recv for this
            dist.send(error.detach(), (self.world.rank + 1) % self.world.size)
        self.world.report_mean(step, error)


class UnpairedRecv(Training):
    """A rank receives what nobody sends.

    What is wrong: in one step one rank waits for a number from the rank after it, which sends it
    only if its own loss is large. It is not.

    What happens: the rank stands in recv and the others in the all_reduce behind it, until gloo
    raises after ``--timeout-s``.

    What pardbg says: an unpaired receive: which rank waits for which, since when, and the place in
    the program. The rank that should have sent has gone on, and waits in a collective like all
    others.

        pardbg demo fault:unpaired-recv --fault-rank 2 --fault-step 5
    """

    def after(self, step: int, error: Tensor) -> None:
        if self.fault.now(step):
            theirs = torch.empty_like(error)
            # FAULT: the next rank has no send for this
            dist.recv(theirs, (self.world.rank + 1) % self.world.size)
        self.world.report_mean(step, error)
