"""Hand-written ring all-reduce of gradients over send/recv (data parallel; not a pipeline)."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn

dist.init_process_group("gloo")
r, W = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
m = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
opt = torch.optim.SGD(m.parameters(), 0.1)


def ring_allreduce(t):
    cs = list(t.chunk(W))
    nx, pv = (r + 1) % W, (r - 1) % W
    for i in range(2 * (W - 1)):
        s, d = (r - i) % W, (r - i - 1) % W
        if i >= W - 1:
            s, d = (r + 1 - (i - W + 1)) % W, (r - (i - W + 1)) % W
        buf = torch.empty_like(cs[d])
        w = dist.isend(cs[s].contiguous(), nx)
        dist.recv(buf, pv)
        w.wait()
        cs[d].add_(buf) if i < W - 1 else cs[d].copy_(buf)


g = torch.Generator().manual_seed(r)
for step in range(int(os.environ.get("STEPS", 6))):
    x = torch.randn(16, 32, generator=g)
    loss = nn.functional.cross_entropy(m(x), x[:, :4].argmax(1))
    opt.zero_grad()
    loss.backward()
    flat = torch.cat([p.grad.view(-1) for p in m.parameters()])
    pad = torch.zeros((-flat.numel()) % W)
    flat = torch.cat([flat, pad])
    ring_allreduce(flat)
    flat /= W
    o = 0
    for p in m.parameters():
        p.grad.copy_(flat[o : o + p.numel()].view_as(p))
        o += p.numel()
    opt.step()
    if r == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
