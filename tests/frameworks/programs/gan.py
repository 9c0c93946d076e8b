"""GAN: two DDP models, two optimizers, two backward and two steps an iteration."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
r = dist.get_rank()
torch.manual_seed(0)
G = DDP(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16)))
Dn = DDP(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)), broadcast_buffers=False)
oG, oD = torch.optim.Adam(G.parameters(), 1e-3), torch.optim.Adam(Dn.parameters(), 1e-3)
bce = nn.BCEWithLogitsLoss()
one, zero = torch.ones(16, 1), torch.zeros(16, 1)
g = torch.Generator().manual_seed(r)
for i in range(int(os.environ.get("STEPS", 6))):
    real = torch.randn(16, 16, generator=g)
    fake = G(torch.randn(16, 8, generator=g))
    oD.zero_grad()
    lD = bce(Dn(torch.cat([real, fake.detach()])), torch.cat([one, zero]))
    lD.backward()
    oD.step()
    oG.zero_grad()
    lG = bce(Dn(fake), one)
    lG.backward()
    oG.step()
    if r == 0:
        print(f"iter {i} loss_D {lD.item():.4f} loss_G {lG.item():.4f}", flush=True)
dist.destroy_process_group()
