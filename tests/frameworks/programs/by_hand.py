"""A pipeline by hand over send and recv. KIND=1f1b or afab; NAMED=1: it names its actions."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn

try:
    import pardbg_agent
except ImportError:
    pardbg_agent = None

KIND, NAMED = os.environ.get("KIND", "1f1b"), os.environ.get("NAMED") == "1"
WIDTH, MICROBATCHES, BATCH, STEPS = 64, 6, 8, int(os.environ.get("STEPS", 6))

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
first, last = rank == 0, rank == size - 1
torch.manual_seed(rank)
net = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
generator = torch.Generator().manual_seed(0)


def action(kind, mb):
    if NAMED and pardbg_agent is not None:
        return pardbg_agent.action(kind, stage=rank, mb=mb)
    return contextlib.nullcontext()


def forward(mb):
    x = inputs[mb] if first else torch.empty(BATCH, WIDTH)
    if not first:
        dist.recv(x, rank - 1)
        x.requires_grad_()
    with action("F", mb):
        y = net(x)
        if last:
            y = (y - targets[mb]).pow(2).mean()
    if last:
        losses.append(y.item())
    else:
        sends.append(dist.isend(y.detach(), rank + 1))
    kept.append((x, y))


def backward(mb):
    x, y = kept.pop(0)
    gradient = None
    if not last:
        gradient = torch.empty(BATCH, WIDTH)
        dist.recv(gradient, rank + 1)
    with action("B", mb):
        (y / MICROBATCHES if last else y).backward(gradient)
    if not first:
        dist.send(x.grad, rank - 1)


if NAMED and pardbg_agent is not None:
    pardbg_agent.plan("gpipe" if KIND == "afab" else "1f1b", range(size), MICROBATCHES)
ahead = MICROBATCHES if KIND == "afab" else min(size - 1 - rank, MICROBATCHES)
for step in range(STEPS):
    batch = torch.randn(MICROBATCHES, BATCH, WIDTH, generator=generator)
    inputs, targets, kept, losses, sends = list(batch), list(batch.roll(1, 2)), [], [], []
    optimizer.zero_grad()
    for mb in range(ahead):
        forward(mb)
    for mb in range(MICROBATCHES - ahead):
        forward(ahead + mb)
        backward(mb)
    for mb in range(MICROBATCHES - ahead, MICROBATCHES):
        backward(mb)
    for work in sends:
        work.wait()
    optimizer.step()
    if last:
        print(f"step {step} loss {sum(losses) / MICROBATCHES:.4f}", flush=True)
dist.barrier()
dist.destroy_process_group()
