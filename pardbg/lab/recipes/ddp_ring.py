"""Data parallel whose all_reduce is written out: a ring over sends and receives, chunk by chunk."""

# No `from __future__ import annotations` here: DDP looks at the types of a communication hook's
# arguments, and would find strings.

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket

from pardbg.lab.recipes import watched
from pardbg.lab.recipes.data import batches
from pardbg.lab.recipes.ddp import replica
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import loss
from pardbg.lab.recipes.shape import BATCH


def ring_all_reduce(flat: Tensor, rank: int, size: int) -> None:
    """Sum ``flat`` over all ranks, in place, by 2 (size-1) messages to the right neighbour."""
    # Views of one vector, so nothing is copied. The first chunks are one element longer where the
    # size does not divide.
    chunks = flat.tensor_split(size)
    inbox = torch.empty_like(chunks[0])
    steps = 2 * (size - 1)
    for step in range(steps):
        reducing = step < size - 1
        # What came in the last step is what goes out now: one chunk further back each time.
        outgoing, incoming = (rank - step) % size, (rank - step - 1) % size
        name = "reduce-scatter" if reducing else "all-gather"
        with watched.span(name, part=step + 1, parts=steps, chunk=outgoing):
            come = inbox[: len(chunks[incoming])] if reducing else chunks[incoming]
            # Both at once: if all sent first and received then, all would wait for each other.
            receive = dist.irecv(come, (rank - 1) % size)
            send = dist.isend(chunks[outgoing], (rank + 1) % size)
            receive.wait()
            send.wait()
        if reducing:
            chunks[incoming].add_(come)


def ring_hook(world: World, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Run the ring instead of DDP's all_reduce of a bucket."""
    gradients = bucket.buffer()
    ring_all_reduce(gradients, world.rank, world.size)
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(gradients.div_(world.size))  # a hook divides for itself
    return done


def train(world: World, options: Options) -> None:
    model = replica(world, options)
    model.register_comm_hook(world, ring_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)

    for step, tokens, targets in batches(world, options):
        # DDP takes the mean over ranks. Where 16 sequences do not divide by them, a rank with more
        # sequences counts for more.
        error = loss(model(tokens), targets) * (len(tokens) * world.size / BATCH)
        optimizer.zero_grad()
        error.backward()  # the rings turn in here, one per bucket
        optimizer.step()

        world.report_mean(step, error)


if __name__ == "__main__":
    main("ddp-ring", train)
