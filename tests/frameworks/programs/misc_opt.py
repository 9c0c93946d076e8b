"""Odd forms of optimizers: a closure, sparse gradients, loaded state, no gradient."""

import copy

import torch
import torch.distributed as dist
import torch.nn as nn

dist.init_process_group("gloo")
r, W = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
emb = nn.Embedding(50, 8, sparse=True)
head = nn.Linear(8, 2)
unused = nn.Linear(3, 3)
o1, o2 = (
    torch.optim.SparseAdam(emb.parameters(), 1e-2),
    torch.optim.Adam(list(head.parameters()) + list(unused.parameters()), 1e-2),
)
o2.load_state_dict(copy.deepcopy(o2.state_dict()))
g = torch.Generator().manual_seed(r)
for s in range(4):
    ids = torch.randint(0, 50, (16,), generator=g)
    loss = nn.functional.cross_entropy(head(emb(ids)), ids % 2)
    o1.zero_grad()
    o2.zero_grad()
    loss.backward()
    sp = emb.weight.grad
    dist.all_reduce(sp)  # sparse all_reduce, gloo
    for p in head.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM, group=None)
        p.grad /= W
    o1.step()
    o2.step()
    if r == 0:
        print(f"step {s} loss {loss.item():.4f}", flush=True)
lb = torch.optim.LBFGS(head.parameters(), max_iter=4)


def closure():
    lb.zero_grad()
    l = nn.functional.cross_entropy(head(torch.ones(4, 8)), torch.zeros(4, dtype=torch.long))
    l.backward()
    return l


for s in range(2):
    lb.step(closure)
dist.destroy_process_group()
