"""The connection from one rank to the next is slow.

What is wrong: from one step on, the bytes from one rank to the one after it travel at
``--fault-size`` MB/s: a bad cable, a busy switch port, an adapter that fell back to a slower mode.
The kernel is asked to pace that one socket, so this is a slow link and not a slow program. (It lets
the first 64 KB of a message go at once, so what is measured is somewhat more than what was asked.)

What happens: no error. The ring of ``ddp_ring.py`` turns at the pace of its slowest link, and every
rank waits in it as long as any other, so each rank's own figures look alike.

What pardbg says: slow link: from which rank to which, its bandwidth beside that of the other links,
and what it costs per step.

    pardbg demo fault:slow-link --fault-rank 2 --fault-step 5 --fault-size 10
"""

# No `from __future__ import annotations` here: DDP looks at the types of the hook's arguments.

import os
import socket
import stat

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket

from pardbg.recipes.ddp_ring import ring_all_reduce
from pardbg.recipes.faults.planted import ddp, planted, report_mean
from pardbg.recipes.launch import Options, World, main
from pardbg.recipes.model import loss

SO_MAX_PACING_RATE = 47
"""Linux; the socket module has no name for it. Bytes per second."""


def train(world: World, options: Options) -> None:
    fault = planted(world, options)
    model, optimizer, batch = ddp(world, options)
    model.register_comm_hook(world, ring)
    for step in range(options.steps):
        if step == options.own["fault-step"]:
            link = connections_to((options.own["fault-rank"] + 1) % world.size)
            for connection in link if fault.mine else []:
                # FAULT: slow from here on
                connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, int(fault.size * 1e6))
        tokens, targets = batch(step)
        error = loss(model(tokens), targets)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        report_mean(world, step, error)


def ring(world: World, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    gradients = bucket.buffer()
    ring_all_reduce(gradients, world.rank, world.size)
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(gradients.div_(world.size))
    return done


def connections_to(rank: int) -> list[socket.socket]:
    """This process's TCP connections with that rank. Every rank calls it: each says which it has,
    and the two ends of a connection have the same two addresses."""
    mine = [s for s in open_sockets() if s.family in (socket.AF_INET, socket.AF_INET6)]
    ends = [(s.getsockname(), s.getpeername()) for s in mine]
    of_rank: list[list[tuple[object, object]]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(of_rank, ends)
    return [s for s, (own, peer) in zip(mine, ends, strict=True) if (peer, own) in of_rank[rank]]


def open_sockets() -> list[socket.socket]:
    """The connected sockets of this process, gloo's among them, as copies."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.stat(int(name)).st_mode):
                copy = socket.socket(fileno=os.dup(int(name)))
                copy.getpeername()
                found.append(copy)
        except OSError:
            continue  # not connected, or closed meanwhile
    return found


if __name__ == "__main__":
    main("fault:slow-link", train)
