"""A rank sends what nobody receives.

What is wrong: in one step one rank finds a sample worth a second look and sends its loss to the
rank after it. The other side of that was never written.

What happens: gloo hands a tensor over only when the receiver is there, so the send waits, and the
other ranks wait in the all_reduce behind it until gloo raises after ``--timeout-s``. NCCL is the
same. (With isend and no wait the program would go on, and the next real message between the two
would be paired with this one.)

What pardbg says: an unpaired send, from which rank to which, since when, and the place in the
program. The receiving rank waits in a collective like all others.

    pardbg demo fault:unpaired-send --fault-rank 2 --fault-step 5
"""

from __future__ import annotations

import torch.distributed as dist

from pardbg.recipes.faults.planted import ddp, planted, report_mean
from pardbg.recipes.launch import Options, World, main
from pardbg.recipes.model import loss


def train(world: World, options: Options) -> None:
    fault = planted(world, options)
    model, optimizer, batch = ddp(world, options)
    for step in range(options.steps):
        tokens, targets = batch(step)
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        if fault.now(step):
            # FAULT: the next rank has no recv for this
            dist.send(error.detach(), (world.rank + 1) % world.size)
        report_mean(world, step, error)


if __name__ == "__main__":
    main("fault:unpaired-send", train)
