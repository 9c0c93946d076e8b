"""One rank goes wrong by itself: its numbers, its memory, its end."""

from __future__ import annotations

import os
import signal

import torch
from torch import Tensor
from torch.nn import functional as F

from pardbg.lab.recipes.faults.planted import NUMBERS_PER_MIB, Training
from pardbg.lab.recipes.shape import VOCABULARY


class Nan(Training):
    """One rank's loss becomes NaN, and a step later everybody's weights are.

    What is wrong: the loss is the mean over the tokens that count, leaving out padding. In one step
    nothing but padding is in one rank's share, and the mean of nothing is 0/0.

    What happens: that rank's gradients are NaN, the all_reduce averages them into everybody's, and
    the optimizer writes them to all weights. From the next step on every loss on every rank is NaN,
    so by the time one looks there is no telling where it began. Nothing stops; the exit code is 0.

    What pardbg says: which rank's loss was NaN first, in which step; all others follow.

        pardbg demo fault:nan --fault-rank 2 --fault-step 5
    """

    def error(self, step: int, scores: Tensor, targets: Tensor) -> Tensor:
        counts = torch.ones_like(targets, dtype=torch.float32)
        if self.fault.now(step):
            counts.zero_()  # FAULT: padding only
        each = F.cross_entropy(scores.transpose(1, 2), targets, reduction="none")
        return (each * counts).sum() / counts.sum()


class Diverge(Training):
    """One replica's weights drift away from the others'.

    What is wrong: replicas stay equal because they start equal and take equal updates; DDP sees to
    the gradients and never compares weights. From one step on, one rank updates with another
    learning rate (times ``--fault-size``), as a scheduler does that looks at the rank's own loss.

    What happens: no error. Each rank trains its own model a little more each step, on gradients
    that belong to several; the mean loss looks well enough; the checkpoint that rank 0 writes is
    one of them.

    What pardbg says: the replicas of the model differ, since which step, and which rank's differs
    from the rest.

        pardbg demo fault:diverge --fault-rank 2 --fault-step 5
    """

    def update(self, step: int) -> None:
        if self.fault.now(step):
            self.optimizer.param_groups[0]["lr"] *= self.fault.size  # FAULT: on this rank alone
        self.optimizer.step()


class MemoryCreep(Training):
    """One rank's memory grows with every step.

    What is wrong: from one step on, one rank keeps each step's outputs in a list, to look at them
    later, with ``--fault-size`` MiB of features beside them. Nobody empties the list.

    What happens: nothing, for hours. Then that rank runs out of memory, in a place that has nothing
    to do with it.

    What pardbg says: memory creep: this rank's memory grows, by how much a step, and that none of
    it is parameters, gradients or optimizer state.

        pardbg demo fault:memory-creep --fault-rank 2 --fault-step 5 --fault-size 8
    """

    def begin(self) -> None:
        self.kept: list[Tensor] = []

    def error(self, step: int, scores: Tensor, targets: Tensor) -> Tensor:
        self.scores = scores
        return super().error(step, scores, targets)

    def after(self, step: int, error: Tensor) -> None:
        if self.fault.since(step):
            # FAULT: never emptied
            self.kept += [self.scores.detach(), torch.ones(int(self.fault.size) * NUMBERS_PER_MIB)]
        self.world.report_mean(step, error)

    def end(self) -> None:
        self.world.say(f"kept {sum(tensor.nbytes for tensor in self.kept)} bytes of outputs")


class MemoryImbalance(Training):
    """One rank uses much more memory than its peers.

    What is wrong: from one step on, one rank alone keeps ``--fault-size`` MiB of features for an
    evaluation that only it does. The batch is cut the same for all.

    What happens: nothing, until the batch or the model grows: then this rank is out of memory while
    the others have room to spare. The largest rank decides what fits.

    What pardbg says: memory imbalance: this rank uses so much more than the median of its peers, in
    no category that the parallelism explains.

        pardbg demo fault:memory-imbalance --fault-rank 2 --fault-step 5 --fault-size 512
    """

    def begin(self) -> None:
        self.features = torch.empty(0)

    def before(self, step: int, tokens: Tensor) -> Tensor:
        if self.fault.now(step):
            # FAULT: on this rank alone
            self.features = torch.ones(int(self.fault.size) * NUMBERS_PER_MIB)
        return tokens

    def end(self) -> None:
        self.world.say(f"kept {self.features.nbytes} bytes of features")


class UncaughtError(Training):
    """One rank raises.

    What is wrong: in one step one rank's data has a token that the vocabulary does not know: a
    damaged file, another tokenizer.

    What happens: that rank ends with IndexError. The others wait for it in DDP's all_reduce and see
    a closed connection, or nothing until the launcher ends them. So several ranks print tracebacks,
    and the launcher names the one whose end it saw first.

    What pardbg says: which rank raised first, what, and where; the other ranks' errors are its
    consequence.

        pardbg demo fault:exception --fault-rank 2 --fault-step 5
    """

    def before(self, step: int, tokens: Tensor) -> Tensor:
        # FAULT: no such token; Embedding raises IndexError
        return tokens + VOCABULARY if self.fault.now(step) else tokens


class Kill(Training):
    """One rank dies without a word.

    What is wrong: in one step one rank is killed with SIGKILL, as the kernel does when the host
    runs out of memory.

    What happens: no traceback and no last line. The others see a closed connection where they
    stand, raise, and print tracebacks about it, though nothing is wrong with them.

    What pardbg says: which rank died, and what it was doing: its last records lie in memory that
    outlives it. The others' errors are the consequence.

        pardbg demo fault:kill --fault-rank 2 --fault-step 5
    """

    def error(self, step: int, scores: Tensor, targets: Tensor) -> Tensor:
        if self.fault.now(step):
            os.kill(os.getpid(), signal.SIGKILL)  # FAULT: out of memory, says the kernel
        return super().error(step, scores, targets)
