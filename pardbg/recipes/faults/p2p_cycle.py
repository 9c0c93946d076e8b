"""Ranks in a ring all receive before they send: each waits for the one before it.

What is wrong: neighbours exchange a number round a ring (``--fault-size`` ranks from
``--fault-rank`` on; 0: all). Healthy, each rank starts its send, receives, and then waits for the
send. In one step all of them receive first.

What happens: every rank of the ring waits for a send that its neighbour would start after its own
receive. Gloo raises after ``--timeout-s``.

What pardbg says: deadlock: the ring of receives, rank by rank. Ranks outside the ring wait too, in
the next step's all_reduce, and are not blamed.

    pardbg demo fault:p2p-cycle --fault-size 3 --fault-rank 1 --fault-step 5
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from pardbg.recipes.faults.planted import ddp
from pardbg.recipes.launch import Options, World, main
from pardbg.recipes.model import loss


def train(world: World, options: Options) -> None:
    size = options.own["fault-size"] or world.size
    ring = [(options.own["fault-rank"] + i) % world.size for i in range(size)]
    model, optimizer, batch = ddp(world, options)
    for step in range(options.steps):
        tokens, targets = batch(step)
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()

        total = error.detach()
        if world.rank in ring:
            exchange(total, ring, world.rank, receive_first=step == options.own["fault-step"])
        dist.all_reduce(total)
        if world.rank == 0:
            world.report(step, total.item() / world.size)


def exchange(mine: Tensor, ring: list[int], rank: int, receive_first: bool) -> Tensor:
    """My number to the next rank of the ring; the one of the rank before me comes back."""
    me = ring.index(rank)
    after, before = ring[(me + 1) % len(ring)], ring[me - 1]
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


if __name__ == "__main__":
    main("fault:p2p-cycle", train)
