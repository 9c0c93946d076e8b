"""Local SGD: 12 local steps, parameters averaged every 4."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn

dist.init_process_group("gloo")
r, W = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
m = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))
opt = torch.optim.SGD(m.parameters(), 0.1)
g = torch.Generator().manual_seed(r)
for s in range(int(os.environ.get("STEPS", 12))):
    x = torch.randn(16, 16, generator=g)
    loss = nn.functional.cross_entropy(m(x), (x.sum(1) > 0).long())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if s % 4 == 3:
        for p in m.parameters():
            dist.all_reduce(p.data)
            p.data /= W
    if r == 0:
        print(f"step {s} loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
