"""A parameter server over send and recv: rank 0 serves, others train."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn

dist.init_process_group("gloo")
r, W = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
m = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))
n = sum(p.numel() for p in m.parameters())
vec = torch.nn.utils.parameters_to_vector
STEPS = int(os.environ.get("STEPS", 6))
if r == 0:
    opt = torch.optim.SGD(m.parameters(), 0.1)
    for _ in range(STEPS):
        gs = []
        for k in range(1, W):
            b = torch.empty(n)
            dist.recv(b, k)
            gs.append(b)
        gm = torch.stack(gs).mean(0)
        o = 0
        for p in m.parameters():
            p.grad = gm[o : o + p.numel()].view_as(p).clone()
            o += p.numel()
        opt.step()
        for k in range(1, W):
            dist.send(vec(m.parameters()).detach(), k)
else:
    g = torch.Generator().manual_seed(r)
    for s in range(STEPS):
        x = torch.randn(16, 16, generator=g)
        loss = nn.functional.cross_entropy(m(x), (x.sum(1) > 0).long())
        m.zero_grad()
        loss.backward()
        dist.send(torch.cat([p.grad.view(-1) for p in m.parameters()]), 0)
        b = torch.empty(n)
        dist.recv(b, 0)
        torch.nn.utils.vector_to_parameters(b, m.parameters())
        if r == 1:
            print(f"step {s} loss {loss.item():.4f}", flush=True)
dist.barrier()
dist.destroy_process_group()
