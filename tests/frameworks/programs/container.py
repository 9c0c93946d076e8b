"""A trainer as torchtitan's: FSDP2 parts of a model, an optimizer each in one container, gradient
accumulation, the mean loss printed, an evaluation at the end."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class OptimizersContainer(torch.optim.Optimizer):
    def __init__(self, parts):
        self.optimizers = [torch.optim.AdamW(part.parameters(), lr=1e-3) for part in parts]
        super().__init__([p for part in parts for p in part.parameters()], {"lr": 1e-3})

    def step(self, *args, **kwargs):
        for optimizer in self.optimizers:
            optimizer.step(*args, **kwargs)

    def zero_grad(self, *args, **kwargs):
        for optimizer in self.optimizers:
            optimizer.zero_grad(*args, **kwargs)


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
torch.manual_seed(0)
parts = [
    nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32)),
    nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)),
]
for part in parts:
    fully_shard(part, mesh=mesh)
optimizer = OptimizersContainer(parts)
torch.manual_seed(dist.get_rank())
for step in range(int(os.environ.get("STEPS", 6))):
    optimizer.zero_grad()
    total = torch.zeros(())
    for _ in range(2):
        x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
        loss = nn.functional.cross_entropy(parts[1](parts[0](x)), y) / 2
        loss.backward()
        total += loss.detach()
    optimizer.step()
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"step: {step + 1}  loss: {total.item() / dist.get_world_size():.4f}", flush=True)
with torch.no_grad():
    for _ in range(3):
        parts[1](parts[0](torch.randn(8, 16)))
dist.destroy_process_group()
