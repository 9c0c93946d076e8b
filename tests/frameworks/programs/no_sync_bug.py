"""Silently wrong: the model is not wrapped and no gradient is ever averaged. GA: microbatches."""

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
GA = int(os.environ.get("GA", "1"))
for s in range(int(os.environ.get("STEPS", 8))):
    opt.zero_grad()
    l = torch.zeros(())
    for _ in range(GA):
        x = torch.randn(16, 16, generator=g)
        loss = nn.functional.cross_entropy(m(x), (x.sum(1) > 0).long()) / GA
        loss.backward()
        l += loss.detach()
    opt.step()
    dist.all_reduce(l)
    if r == 0:
        print(f"step {s} loss {l.item() / W:.4f}", flush=True)
dist.destroy_process_group()
