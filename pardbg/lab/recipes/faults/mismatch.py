"""Ranks that bring different things to one collective."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from pardbg.lab.recipes.faults.planted import Training


class MismatchOp(Training):
    """One rank calls another collective than the others.

    What is wrong: only rank 0 prints the mean loss, so one rank, in one step, sends its share to
    rank 0 alone with reduce, while the others call all_reduce. Each is right by itself; together
    they are not: a group's ranks must call the same operations in the same order.

    What happens: each side waits for messages that the other never sends. Gloo raises after
    ``--timeout-s`` on some of them, with a word about a connection. Nothing says "mismatch".

    What pardbg says: op mismatch, in which group and at which place in its order, who called what,
    and the rank that differs.

        pardbg demo fault:mismatch-op --fault-rank 2 --fault-step 5
    """

    def after(self, step: int, error: Tensor) -> None:
        mean = error.detach()
        if self.fault.now(step):
            dist.reduce(mean, dst=0)  # FAULT: reduce here, all_reduce on every other rank
        else:
            dist.all_reduce(mean)
        if self.world.rank == 0:
            self.world.report(step, mean.item() / self.world.size)


class MismatchShape(Training):
    """One rank brings a smaller tensor to a collective than the others.

    What is wrong: the losses of all sequences are gathered, for a histogram. In one step one rank
    has one sequence less, as at the end of a data set that the ranks do not share evenly.
    all_gather takes it that all ranks bring as much as oneself.

    What happens: gloo notices a message longer than what it expects, in a thread of its own, and
    ends that process with SIGABRT. Its neighbours read "connection reset by peer". On NCCL the same
    mistake reads past a buffer, or hangs.

    What pardbg says: size mismatch, how many bytes each rank brought, and the rank that differs,
    though other ranks than that one have died.

        pardbg demo fault:mismatch-shape --fault-rank 2 --fault-step 5
    """

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
    """One rank brings another type of number to a collective, as many bytes: nobody notices.

    What is wrong: the ranks sum how many tokens they trained on, to average the loss over all of
    them. From one step on, one rank counts in int32 where the others count in float32.

    What happens: nothing stops. Each side takes the other's bits for its own type: 256 as int32 is
    3.6e-43 as float32. The sum is too small by one rank's tokens, the printed loss too high by as
    much, and the training goes on to its end with exit code 0. With gradients in fp16 on one rank
    and bf16 on the others it would be the model that is wrong.

    What pardbg says: dtype mismatch, which types, and the rank that differs. No error, no hang and
    no log line could tell.

        pardbg demo fault:mismatch-dtype --fault-rank 2 --fault-step 5
    """

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
    """One rank broadcasts from itself, the others wait for rank 0.

    What is wrong: rank 0 decides the learning rate and broadcasts it. In one step one rank passes
    itself as the source, as happens when a rank within a group is taken for a rank of the job.
    (Rank 0, which would be right with itself, passes rank 1.)

    What happens: that rank sends instead of receiving, the messages meet in the wrong operations,
    and the ranks stand in this collective or the next until gloo raises after ``--timeout-s``.

    What pardbg says: root mismatch, which root each rank named, and the rank that differs.

        pardbg demo fault:mismatch-root --fault-rank 2 --fault-step 5
    """

    def before(self, step: int, tokens: Tensor) -> Tensor:
        rate = torch.tensor(self.options.lr)
        # FAULT: one rank names itself
        dist.broadcast(rate, src=(self.world.rank or 1) if self.fault.now(step) else 0)
        self.optimizer.param_groups[0]["lr"] = rate.item()
        return tokens
