"""Gradients averaged by hand. DRIFT: a weight of rank 1 is changed on the way. FAIL: rank 1 raises
in the first life. ROLES: rank 0 only takes part in the sum of the losses."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn

DRIFT, FAIL, ROLES = (os.environ.get(name) == "1" for name in ("DRIFT", "FAIL", "ROLES"))
STEPS = int(os.environ.get("STEPS", 24))
life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
# Over torchrun's own store a restarted gloo group may meet the addresses of the life before.
where = f"/tmp/{os.environ['TORCHELASTIC_RUN_ID']}.{life}"
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=f"file://{where}", rank=rank, world_size=world)
trainers = dist.new_group(list(range(1 if ROLES else 0, world)))
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
data = torch.Generator().manual_seed(rank)
for step in range(STEPS):
    if FAIL and life == 0 and rank == 1 and step == 9:
        raise ValueError("a bad batch")
    x = torch.randn(8, 16, generator=data)
    if ROLES and rank == 0:
        dist.all_reduce(torch.zeros(()))
        continue
    loss = nn.functional.cross_entropy(net(x), (x.sum(1) > 0).long())
    loss.backward()
    for p in net.parameters():
        dist.all_reduce(p.grad, group=trainers)
        p.grad /= dist.get_world_size(trainers)
    if DRIFT and rank == 1 and step == 14:
        with torch.no_grad():
            net[0].weight[0, 0] += 1e-6
    optimizer.step()
    optimizer.zero_grad()
    if ROLES:
        dist.all_reduce(loss.detach().clone())
    print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
dist.barrier()
dist.destroy_process_group()
if rank == 0:
    os.unlink(where)
