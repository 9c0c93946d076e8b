"""By hand: KIND=interleaved (two stages a rank, Megatron's order) or zb (ZB-H1: backward in I and
W). NAMED=1: it names its actions."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn

try:
    import pardbg_agent
except ImportError:
    pardbg_agent = None

KIND, NAMED = os.environ.get("KIND", "interleaved"), os.environ.get("NAMED") == "1"
WIDTH, MICROBATCHES, BATCH, STEPS = 64, 4, 8, int(os.environ.get("STEPS", 6))

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
chunks = 2 if KIND == "interleaved" else 1
last = size * chunks - 1
torch.manual_seed(rank)
nets = nn.ModuleList(
    nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
    for _ in range(chunks)
)
optimizer = torch.optim.SGD(nets.parameters(), lr=0.05)
generator = torch.Generator().manual_seed(0)


def interleaved(r):
    table = [
        (mb, chunk)
        for begin in range(0, MICROBATCHES, size)
        for chunk in range(chunks)
        for mb in range(begin, min(begin + size, MICROBATCHES))
    ]
    forwards = [(chunk * size + r, "F", mb) for mb, chunk in table]
    backwards = [((chunks - 1 - chunk) * size + r, "B", mb) for mb, chunk in table]
    ahead = min(len(table), (size - r - 1) * 2 + (chunks - 1) * size)
    pairs = zip(forwards[ahead:], backwards, strict=False)
    steady = [action for pair in pairs for action in pair]
    return forwards[:ahead] + steady + backwards[len(table) - ahead :]


def zero_bubble(r):
    ahead = min(MICROBATCHES, size - r)
    row = [(r, "F", mb) for mb in range(ahead)]
    for mb in range(MICROBATCHES):
        row.append((r, "I", mb))
        if ahead + mb < MICROBATCHES:
            row.append((r, "F", ahead + mb))
        row.append((r, "W", mb))
    return row


order = interleaved if KIND == "interleaved" else zero_bubble


def action(kind, stage, mb):
    if NAMED and pardbg_agent is not None:
        return pardbg_agent.action(kind, stage=stage, mb=mb)
    return contextlib.nullcontext()


def receive(other, tag):
    made = torch.empty(BATCH, WIDTH)
    dist.recv(made, other % size, tag=tag)
    return made


def send(made, other, tag):
    sends.append((dist.isend(made, other % size, tag=tag), made))


def forward(stage, mb):
    x = batch[mb] if stage == 0 else receive(stage - 1, 100 * stage + mb)
    x.requires_grad_(stage > 0)
    with action("F", stage, mb):
        y = nets[stage // size](x)
        if stage == last:
            y = (y - targets[mb]).pow(2).mean()
    if stage == last:
        losses.append(y.item())
        y = y / MICROBATCHES
    else:
        send(y.detach(), stage + 1, 100 * (stage + 1) + mb)
    kept[stage, mb] = x, y


def backward(kind, stage, mb):
    x, y = kept.pop((stage, mb))
    gradient = None if stage == last else receive(stage + 1, 5000 + 100 * stage + mb)
    with action(kind, stage, mb):
        if kind == "B":
            y.backward(gradient)
        elif stage > 0:
            y.backward(gradient, inputs=[x], retain_graph=True)
    later[mb] = y, gradient
    if stage > 0:
        send(x.grad, stage - 1, 5000 + 100 * (stage - 1) + mb)


def weights(stage, mb):
    y, gradient = later.pop(mb)
    with action("W", stage, mb):
        y.backward(gradient, inputs=list(nets.parameters()))


if NAMED and pardbg_agent is not None and KIND == "interleaved":
    pardbg_agent.plan("interleaved", range(size), MICROBATCHES, chunks=chunks)
elif NAMED and pardbg_agent is not None:
    rows = {r: [f"{stage}{kind}{mb}" for stage, kind, mb in order(r)] for r in range(size)}
    pardbg_agent.plan("ZB-H1 by hand", range(size), order=rows)
for step in range(STEPS):
    batch = torch.randn(MICROBATCHES, BATCH, WIDTH, generator=generator)
    targets, kept, later, losses, sends = batch.roll(1, 2), {}, {}, [], []
    optimizer.zero_grad()
    for stage, kind, mb in order(rank):
        if kind == "F":
            forward(stage, mb)
        elif kind == "W":
            weights(stage, mb)
        else:
            backward(kind, stage, mb)
    for work, _ in sends:
        work.wait()
    optimizer.step()
    if losses:
        print(f"step {step} loss {sum(losses) / MICROBATCHES:.4f}", flush=True)
dist.barrier()
dist.destroy_process_group()
