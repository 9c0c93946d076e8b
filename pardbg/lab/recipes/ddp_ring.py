"""Data parallel whose all_reduce is written out: a ring over sends and receives, chunk by chunk.

    n ranks, the gradients in n chunks; each rank sends to the right and receives from the left.

    reduce-scatter, n-1 steps: pass a chunk on, add what comes; then each rank has one whole sum
    all-gather,     n-1 steps: pass the whole sums on, until everybody has all of them

    chunks of     rank 0      rank 1      rank 2      rank 3         (4 ranks, n = 4)
    step 1 sends  c0 ─► 1     c1 ─► 2     c2 ─► 3     c3 ─► 0        reduce-scatter
    step 2        c3          c0          c1          c2
    step 3        c2          c3          c0          c1
    step 4 sends  c1 ─► 1     c2 ─► 2     c3 ─► 3     c0 ─► 0        all-gather
    step 5        c0          c1          c2          c3
    step 6        c3          c0          c1          c2

What travels: 2 (n-1) messages of S/n bytes from each rank, 2 (n-1)/n · S in all: less than 2 S
however many ranks there are, and every link of the ring is busy all the time. That is why every
library has this algorithm, and why pardbg draws all_reduce as a ring where it cannot look inside.
Here it can: each message is named with its phase, step and chunk.

DDP calls it for each bucket of gradients, in place of its own all_reduce. It waits for the ring
before it goes on; DDP's own goes on with backward meanwhile.

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.ddp_ring
"""

# No `from __future__ import annotations` here: DDP looks at the types of a communication hook's
# arguments, and would find strings.

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from pardbg.lab.recipes import watched
from pardbg.lab.recipes.data import Text, share
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import gpt, loss
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
    """The ring in the place of DDP's all_reduce of a bucket."""
    gradients = bucket.buffer()
    ring_all_reduce(gradients, world.rank, world.size)
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(gradients.div_(world.size))  # a hook divides for itself
    return done


def train(world: World, options: Options) -> None:
    model = DistributedDataParallel(
        gpt(options.seed, options.pace_ms).to(world.device), bucket_cap_mb=0.5
    )
    model.register_comm_hook(world, ring_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    text = Text(options.seed, world.device)
    mine = share(world.rank, world.size)

    for step in range(options.steps):
        tokens, targets = (part[mine] for part in text.batch(step))
        # DDP takes the mean over ranks. Where 16 sequences do not divide by them, a rank with more
        # sequences counts for more.
        error = loss(model(tokens), targets) * (len(tokens) * world.size / BATCH)
        optimizer.zero_grad()
        error.backward()  # the rings turn in here, one per bucket
        optimizer.step()

        world.report_mean(step, error)


if __name__ == "__main__":
    main("ddp-ring", train)
