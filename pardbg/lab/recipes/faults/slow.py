"""Faults that make a correct training slower than necessary."""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from pardbg.lab.recipes.ddp_ring import ring_hook
from pardbg.lab.recipes.faults.planted import NUMBERS_PER_MIB, Batch, Fault, Training
from pardbg.lab.recipes.launch import Options, World
from pardbg.lab.recipes.model import blocks_of
from pardbg.lab.recipes.paced import Paced
from pardbg.lab.recipes.pipeline import made_by, train_pipeline
from pardbg.lab.recipes.shape import BLOCKS, share

SO_MAX_PACING_RATE = 47
"""Linux's socket option, which the socket module lacks. Bytes per second."""


class Straggler(Training):
    """Fault: one rank computes more slowly than the others."""

    def before(self, step: int, tokens: Tensor) -> Tensor:
        if self.fault.now(step):
            # FAULT: a block takes longer from now on: a third in forward, the rest in backward
            late = Paced(self.fault.size / 3)
            block = self.model[-2].get_submodule("mlp")
            block.register_forward_hook(lambda *call: late(call[-1]))
        return tokens


class SlowLoader(Training):
    """Fault: one rank's data comes late."""

    def begin(self) -> None:
        batches = Batches(self.batch, self.options.steps, self.fault)
        loader = iter(DataLoader(batches, batch_size=None))
        self.batch = lambda _: next(loader)


class Batches(Dataset[tuple[Tensor, Tensor]]):
    """This rank's shares of the batches, by step."""

    def __init__(self, batch: Batch, steps: int, fault: Fault) -> None:
        self.batch, self.steps, self.fault = batch, steps, fault

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        if self.fault.since(step):
            time.sleep(self.fault.size / 1e3)  # FAULT: this rank's disk is slow
        return self.batch(step)


class GilHold(Training):
    """Fault: one rank runs C code that keeps Python's lock (the GIL)."""

    def before(self, step: int, tokens: Tensor) -> Tensor:
        if self.fault.now(step):
            # FAULT: PyDLL calls C without releasing the GIL, as an extension may
            ctypes.PyDLL(None).usleep(int(self.fault.size * 1e6))
        return tokens


class SlowLink(Training):
    """Fault: the connection from one rank to the next is slow."""

    def wrap(self, model: nn.Sequential) -> nn.Module:
        replica = DistributedDataParallel(model, bucket_cap_mb=0.5)
        replica.register_comm_hook(self.world, ring_hook)
        return replica

    def before(self, step: int, tokens: Tensor) -> Tensor:
        if step == self.fault.step:
            link = connections_to((self.options.own["fault-rank"] + 1) % self.world.size)
            rate = int(self.fault.size * 1e6)
            for connection in link if self.fault.mine else []:
                # FAULT: slow from here on
                connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
        return tokens


def connections_to(rank: int) -> list[socket.socket]:
    """Return this process's TCP connections with that rank, by both ends' addresses; for all ranks
    to call at once."""
    mine = [s for s in open_sockets() if s.family in (socket.AF_INET, socket.AF_INET6)]
    ends = [(s.getsockname(), s.getpeername()) for s in mine]
    of_rank: list[list[tuple[object, object]]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(of_rank, ends)
    return [s for s, (own, peer) in zip(mine, ends, strict=True) if (peer, own) in of_rank[rank]]


def open_sockets() -> list[socket.socket]:
    """Return the connected sockets of this process, gloo's among them, as copies."""
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


class ExposedComm(Training):
    """Fault: a large collective in the middle of the step, which all ranks wait for."""

    def begin(self) -> None:
        count = self.options.own["fault-size"] * NUMBERS_PER_MIB
        self.mine = torch.ones(count, device=self.world.device)
        self.all_ranks = [torch.empty_like(self.mine) for _ in range(self.world.size)]

    def before(self, step: int, tokens: Tensor) -> Tensor:
        dist.all_gather(self.all_ranks, self.mine)  # FAULT: waits; async_op=True would not
        return tokens


class SmallMessages(Training):
    """Fault: gradients averaged one tensor at a time, a hundred tiny collectives per step."""

    def wrap(self, model: nn.Sequential) -> nn.Module:
        return model  # no DDP

    def update(self, step: int) -> None:
        for parameter in self.model.parameters():  # FAULT: no buckets, no overlap
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= self.world.size
        self.optimizer.step()


def stage_imbalance(world: World, options: Options) -> None:
    """Train with a pipeline in which one stage has more blocks than the others."""
    # FAULT: not BLOCKS / size for each
    sizes = uneven_cut(world.size, options.own["fault-rank"], options.own["fault-size"])

    def cut(whole: nn.Sequential, index: int, num_stages: int) -> nn.Module:
        begin = sum(sizes[:index])
        return blocks_of(whole, begin, begin + sizes[index])

    train_pipeline(world, options, made_by("Schedule1F1B"), cut=cut)


def uneven_cut(num_stages: int, large: int, more: int) -> list[int]:
    """Return blocks per stage: ``more`` of them moved to stage ``large``, one by one from the stage
    with most of the others. Each keeps one."""
    parts = [share(i, num_stages, BLOCKS) for i in range(num_stages)]
    sizes = [part.stop - part.start for part in parts]
    for _ in range(more):
        giver = max((i for i in range(num_stages) if i != large), key=lambda i: sizes[i])
        if sizes[giver] > 1:
            sizes[giver] -= 1
            sizes[large] += 1
    return sizes
