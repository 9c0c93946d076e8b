"""A tour of torch.distributed: every collective, every way to send and receive, every reduction."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import reduce

import torch
import torch.distributed as dist
from torch import Tensor

from pardbg.lab.recipes import watched
from pardbg.lab.recipes.launch import Options, World, main

SIZE = 4
"""Number of elements of a tensor."""
BITWISE = ("BAND", "BOR", "BXOR")
REDUCTIONS = {
    "gloo": ("SUM", "AVG", "PRODUCT", "MIN", "MAX", *BITWISE),
    "nccl": ("SUM", "AVG", "PRODUCT", "MIN", "MAX"),
    "mpi": ("SUM", "PRODUCT", "MIN", "MAX", *BITWISE),
}
"""Reductions of each backend. PREMUL_SUM is NCCL's alone, and no method of ReduceOp."""

# Before 2.13 they had these other names.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Tour:
    """Tour of one rank through all operations."""

    def __init__(self, world: World, backend: str, pause_s: float) -> None:
        self.rank, self.size, self.device = world.rank, world.size, world.device
        self.everybody = range(1, world.size + 1)  # what the ranks hold
        self.right = (world.rank + 1) % world.size
        self.left = (world.rank - 1) % world.size
        self.backend, self.pause_s = backend, pause_s
        self.seen: list[str] = []

    def mine(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((SIZE,), self.rank + 1, dtype=dtype, device=self.device)

    def of_all(self) -> list[Tensor]:
        """Return every rank's tensor: a list to send, or to compare with."""
        return [torch.full((SIZE,), float(n), device=self.device) for n in self.everybody]

    def empty(self) -> list[Tensor]:
        return [torch.zeros(SIZE, device=self.device) for _ in self.everybody]

    def check(self, what: str, got: object, want: object) -> None:
        """Check an op's result, remember it, and give people time to look."""
        if isinstance(got, Tensor):
            same = bool(torch.isclose(got, torch.tensor(want).to(got)).all())
        else:
            same = got == want
        if not same:
            raise RuntimeError(f"{what}, rank {self.rank}: got {got}, expected {want}")
        self.seen.append(what)
        time.sleep(self.pause_s)

    # ------------------------------------------------------------------------- one to all

    def from_one(self) -> None:
        x = self.mine()
        dist.broadcast(x, src=0)  # everybody has rank 0's now
        self.check("broadcast", x, 1.0)

        x = torch.zeros(SIZE, device=self.device)
        # Only the source has something to cut up. Each rank gets its own 16 bytes.
        dist.scatter(x, self.of_all() if self.rank == 0 else None, src=0)
        self.check("scatter", x, float(self.rank + 1))

    def to_one(self) -> None:
        parts = self.empty() if self.rank == 0 else None
        dist.gather(self.mine(), parts, dst=0)
        want = [part.tolist() for part in self.of_all()] if self.rank == 0 else None
        self.check("gather", parts and [part.tolist() for part in parts], want)

        for name in REDUCTIONS[self.backend]:
            x = self.mine(dtype_of(name))
            dist.reduce(x, dst=0, op=getattr(dist.ReduceOp, name))
            # Elsewhere than at rank 0 there may be anything now.
            at_0 = combined(name, self.everybody) if self.rank == 0 else x.tolist()
            self.check(f"reduce {name}", x, at_0)

    # ------------------------------------------------------------------------- all to all

    def reductions(self) -> None:
        for name in REDUCTIONS[self.backend]:
            x = self.mine(dtype_of(name))
            dist.all_reduce(x, getattr(dist.ReduceOp, name))
            self.check(f"all_reduce {name}", x, combined(name, self.everybody))
        for name in REDUCTIONS[self.backend]:
            # Goes in: a tensor for each rank. Comes out: one, what all had for this rank.
            out = torch.zeros(SIZE, dtype=dtype_of(name), device=self.device)
            dist.reduce_scatter(
                out, [self.mine(dtype_of(name)) for _ in self.everybody],
                getattr(dist.ReduceOp, name),
            )  # fmt: skip
            self.check(f"reduce_scatter {name}", out, combined(name, self.everybody))

    def gathers(self) -> None:
        parts = self.empty()
        dist.all_gather(parts, self.mine())
        self.check("all_gather", [p.tolist() for p in parts], [p.tolist() for p in self.of_all()])

        whole = torch.zeros(self.size * SIZE, device=self.device)
        all_gather_single(whole, self.mine())  # into one piece of memory: no copies after
        self.check("all_gather_single", whole, torch.cat(self.of_all()).tolist())
        part = torch.zeros(SIZE, device=self.device)
        reduce_scatter_single(part, whole)
        self.check("reduce_scatter_single", part, float(self.size * (self.rank + 1)))

    def exchanges(self) -> None:
        # Rank r sends 10 r + i to rank i, and so gets 10 i + r from it.
        send = [torch.full((SIZE,), 10.0 * self.rank + i, device=self.device)
                for i in range(self.size)]  # fmt: skip
        got = self.empty()
        dist.all_to_all(got, send)
        want = [[10.0 * i + self.rank] * SIZE for i in range(self.size)]
        self.check("all_to_all", [part.tolist() for part in got], want)

        whole = torch.zeros(self.size * SIZE, device=self.device)
        dist.all_to_all_single(whole, torch.cat(send))
        self.check("all_to_all_single", whole, [number for part in want for number in part])

    # ------------------------------------------------------------------------- one to one

    def messages(self) -> None:
        x = torch.zeros(SIZE, device=self.device)
        # send waits until the message has gone, so somebody has to receive first: even ranks send,
        # odd ones receive, then the other way round. If all sent first, all would wait forever.
        for turn in (0, 1):
            if self.rank % 2 == turn and self.rank + 1 < self.size:
                dist.send(self.mine(), self.rank + 1)
            elif self.rank % 2 != turn and self.rank > 0:
                dist.recv(x, self.rank - 1)
        self.check("send, recv", x, float(self.rank))  # the left one's number; rank 0 got nothing

        # Around the ring at once: nobody waits before everything is on its way.
        works = [dist.isend(self.mine(), self.right, tag=7), dist.irecv(x, self.left, tag=7)]
        for work in works:
            work.wait()
        self.check("isend, irecv", x, float(self.left + 1))

        # Many messages as one: on NCCL one kernel, which cannot block itself.
        back = torch.zeros(SIZE, device=self.device)
        batch = [
            dist.P2POp(dist.isend, self.mine(), self.right),
            dist.P2POp(dist.isend, -self.mine(), self.left),
            dist.P2POp(dist.irecv, x, self.left),
            dist.P2POp(dist.irecv, back, self.right),
        ]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        self.check("batch_isend_irecv", torch.cat([x[:1], back[:1]]).tolist(),
                   [float(self.left + 1), -float(self.right + 1)])  # fmt: skip

        if self.backend == "gloo":
            self.from_anybody()

    def from_anybody(self) -> None:
        """Receive a message from each rank on rank 0, in the order in which they come."""
        if self.rank > 0:
            dist.send(self.mine(), 0, tag=9)
            self.check("send to whom it may concern", True, True)
            return
        x, senders = torch.zeros(SIZE), []
        for _ in range(self.size - 1):
            sender = dist.recv(x, tag=9)  # no source given; told afterwards
            if x[0] != sender + 1:
                raise RuntimeError(f"recv says {sender}, and the message is rank {x[0] - 1:g}'s")
            senders.append(sender)
        self.check("recv from anybody", sorted(senders), list(range(1, self.size)))

    # ------------------------------------------------------------------------- the rest

    def barriers(self) -> None:
        dist.barrier()
        self.check("barrier", True, True)
        if self.backend == "gloo":
            dist.monitored_barrier()  # rank 0 names the missing ranks
            self.check("monitored_barrier", True, True)

    def objects(self) -> None:
        """Exchange Python objects, pickled. Sizes are sent before the bytes, so each of these is
        two or more collectives."""
        mine = {"rank": self.rank, "square": self.rank**2}
        every: list[object] = [None] * self.size
        dist.all_gather_object(every, mine)
        self.check("all_gather_object", every, [{"rank": r, "square": r * r} for r in
                                                range(self.size)])  # fmt: skip
        sent: list[object] = ["from 0" if self.rank == 0 else None]
        dist.broadcast_object_list(sent, src=0, device=self.device)
        self.check("broadcast_object_list", sent, ["from 0"])
        if self.backend == "nccl":
            return  # it has no gather and scatter for objects
        at_0 = [None] * self.size if self.rank == 0 else None
        dist.gather_object(mine, at_0, dst=0)
        self.check("gather_object", at_0, every if self.rank == 0 else None)
        out: list[object] = [None]
        dist.scatter_object_list(out, every if self.rank == 0 else None, src=0)
        self.check("scatter_object_list", out, [mine])


def dtype_of(name: str) -> torch.dtype:
    """Return the data type of a reduction: integers for bitwise ones."""
    return torch.int64 if name in BITWISE else torch.float32


def combined(name: str, numbers: Sequence[int]) -> float:
    """Return the reduction of the ranks' numbers, computed in Python."""
    ways: dict[str, Callable[[Sequence[int]], float]] = {
        "SUM": sum,
        "AVG": lambda n: sum(n) / len(n),
        "PRODUCT": math.prod,
        "MIN": min,
        "MAX": max,
        "BAND": lambda n: reduce(int.__and__, n),
        "BOR": lambda n: reduce(int.__or__, n),
        "BXOR": lambda n: reduce(int.__xor__, n),
    }
    return ways[name](numbers)


def train(world: World, options: Options) -> None:
    """Run --steps tours, one after the other; with paced compute, rest at each stop."""
    for step in range(options.steps):
        tour = Tour(world, options.own["backend"], options.pace_ms / 1e3)
        for part in (
            tour.from_one, tour.to_one, tour.reductions, tour.gathers, tour.exchanges,
            tour.messages, tour.barriers, tour.objects,
        ):  # fmt: skip
            with watched.span(part.__name__.replace("_", " ")):
                part()
        if world.rank == 0:
            world.say(f"tour {step}: {len(tour.seen)} results as expected: {', '.join(tour.seen)}")
        watched.step(step)


if __name__ == "__main__":
    main("tour", train)
