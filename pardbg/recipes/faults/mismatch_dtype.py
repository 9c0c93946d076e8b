"""One rank brings another type of number to a collective, as many bytes: nobody notices.

What is wrong: the ranks sum how many tokens they trained on, to average the loss over all of them.
From one step on, one rank counts in int32 where the others count in float32.

What happens: nothing stops. Each side takes the other's bits for its own type: 256 as int32 is
3.6e-43 as float32. The sum is too small by one rank's tokens, the printed loss too high by as much,
and the training goes on to its end with exit code 0. With gradients in fp16 on one rank and bf16 on
the others it would be the model that is wrong.

What pardbg says: dtype mismatch, which types, and the rank that differs. No error, no hang and no
log line could tell.

    pardbg demo fault:mismatch-dtype --fault-rank 2 --fault-step 5
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from pardbg.recipes.faults.planted import ddp, planted
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

        # FAULT: int32 on one rank
        number = torch.int32 if fault.since(step) else torch.float32
        count = torch.tensor(targets.numel(), dtype=number, device=world.device)
        total = error.detach() * targets.numel()
        dist.all_reduce(total)
        dist.all_reduce(count)
        if world.rank == 0:
            world.report(step, (total / count).item())


if __name__ == "__main__":
    main("fault:mismatch-dtype", train)
