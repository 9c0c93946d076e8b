"""``sharded.py fsdp|tp|zero|accumulate|mixed|join``: other kinds of parallelism, exact losses."""

from __future__ import annotations

import gc
import sys
import threading

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

STEPS = 3
SIZES = (16, 32, 16)


def say(text: str) -> None:
    sys.stdout.write(f"[rank{dist.get_rank()}] {text}\n")
    sys.stdout.flush()


def model() -> torch.nn.Sequential:
    """16*32 + 32 + 32*16 + 16 = 1072 parameters, 4288 bytes."""
    torch.manual_seed(0)
    first, middle, last = SIZES
    return torch.nn.Sequential(
        torch.nn.Linear(first, middle), torch.nn.ReLU(), torch.nn.Linear(middle, last)
    )


def batch(step: int) -> torch.Tensor:
    return torch.randn(8, SIZES[0], generator=torch.Generator().manual_seed(step))


def train(
    net: torch.nn.Module, optimizer: torch.optim.Optimizer, micro: int = 1, steps: int = STEPS
) -> None:
    for step in range(steps):
        for i in range(micro):
            loss = net(batch(step * micro + i)).square().mean() / micro
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        say(f"loss {float(loss.detach()).hex()}")


def fsdp() -> None:
    net = model()
    for layer in (net[0], net[2]):
        fully_shard(layer)
    fully_shard(net)
    train(net, torch.optim.AdamW(net.parameters(), lr=0.01))


def tp() -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    net = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    train(net, torch.optim.SGD(net.parameters(), lr=0.1))


def zero() -> None:
    net = DistributedDataParallel(model())
    train(net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01))


def accumulate() -> None:
    net = DistributedDataParallel(model())
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), micro=3)


def join() -> None:
    """Rank 1 has two batches less: DDP takes part in the others' averages for it."""
    net = DistributedDataParallel(model())
    for _ in range(2):
        with net.join():
            steps = STEPS - 2 * dist.get_rank()
            train(net, torch.optim.SGD(net.parameters(), lr=0.1), steps=steps)


def mixed() -> None:
    """A GAN-like pair of optimizers, ops from another thread, async ops left to themselves."""
    first, second = model(), model()
    a, b = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (first, second))
    side = dist.new_group()
    totals: list[float] = []

    def background() -> None:
        t = torch.ones(4)
        for _ in range(5):
            dist.all_reduce(t, group=side)
        totals.append(float(t.sum()))

    thread = threading.Thread(target=background)
    thread.start()
    for step in range(STEPS):
        first(batch(step)).square().mean().backward()
        a.step()
        second(batch(step)).square().mean().backward()
        b.step()
        work = dist.all_reduce(torch.ones(2), async_op=True)
        if step:
            assert work is not None
            work.wait()
    thread.join()
    say(f"total {totals[0].hex()} {float(sum(p.sum() for p in second.parameters())).hex()}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    {
        "fsdp": fsdp, "tp": tp, "zero": zero, "accumulate": accumulate, "mixed": mixed,
        "join": join,
    }[sys.argv[1]]()  # fmt: skip
    gc.collect()  # a DDP reducer that outlives its group can abort the process, watched or not
    dist.destroy_process_group()
