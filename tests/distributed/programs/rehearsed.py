"""A training loop on two groups with one planted fault, for rehearsals: FAULT RANK."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

FAULT, WHO = sys.argv[1], int(sys.argv[2])
LAST, STEPS = 2, 4


def step(number: int, rank: int, size: int, group: object, model: torch.nn.Module) -> None:
    bad = rank == WHO and number == LAST
    model(torch.ones(2, 8)).sum().backward()
    grad = next(model.parameters()).grad
    if FAULT == "order" and bad:
        dist.all_reduce(torch.ones(4), group=group)
        dist.all_reduce(grad)
    else:
        average(grad, bad)
        if FAULT == "value" and number == LAST:
            dist.all_reduce(ranks := torch.ones(1))
            assert ranks == size, "a rehearsal gives each rank its own"
        dist.all_reduce(torch.ones(4), group=group)
    dist.broadcast(torch.ones(3), WHO if FAULT == "root" and bad else 0)
    exchange(torch.ones(5), rank, size, bad, FAULT == "cycle" and number == LAST)


def average(grad: torch.Tensor, bad: bool) -> None:
    if FAULT == "op" and bad:
        dist.broadcast(grad, 0)
    elif FAULT == "size" and bad:
        dist.all_reduce(grad[:4].clone())
    elif FAULT == "dtype" and bad:
        dist.all_reduce(grad.to(torch.int32))
    elif FAULT == "reduce" and bad:
        dist.all_reduce(grad, op=dist.ReduceOp.MAX)
    elif not (FAULT == "skip" and bad):
        dist.all_reduce(grad)


def exchange(mine: torch.Tensor, rank: int, size: int, bad: bool, cycle: bool) -> None:
    after, before, theirs = (rank + 1) % size, (rank - 1) % size, torch.empty_like(mine)
    if cycle:
        dist.recv(theirs, before)
        dist.send(mine, after)
    elif FAULT == "unsent" and bad:
        dist.recv(theirs, before)
    else:
        sent = dist.isend(mine, after)
        dist.recv(theirs, before)
        assert sent is not None
        sent.wait()


def main() -> None:
    if FAULT == "gpu":
        torch.cuda.set_device(0)
    dist.init_process_group("nccl", world_size=16 if FAULT == "world" else -1, rank=-1)
    rank, size = dist.get_rank(), dist.get_world_size()
    sizes = [None] * size
    dist.all_gather_object(sizes, rank)
    told = [{"lr": 0.1} if rank == 0 else None]
    dist.broadcast_object_list(told, src=0)
    assert told == [{"lr": 0.1}]
    group = [dist.new_group(range(first, size, 2)) for first in (0, 1)][rank % 2]
    model: torch.nn.Module = torch.nn.Linear(8, 8)
    if FAULT == "none":
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=told[0]["lr"])
    for number in range(STEPS):
        optimizer.zero_grad()
        step(number, rank, size, group, model)
        optimizer.step()
    if rank == 0:
        print("trained")


if __name__ == "__main__":
    main()
