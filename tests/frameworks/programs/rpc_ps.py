"""torch.distributed.rpc alone: rank 0 keeps the parameters, the others train by dist_autograd."""

import os
import warnings

warnings.filterwarnings("ignore")
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.nn as nn
from torch.distributed.optim import DistributedOptimizer


class Server(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(16, 8)

    def forward(self, x):
        return self.net(x)

    def references(self):
        return [rpc.RRef(p) for p in self.parameters()]


rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc("server" if rank == 0 else f"trainer{rank}", rank=rank, world_size=world)
if rank > 0:
    torch.manual_seed(rank)
    server, head = rpc.remote("server", Server), nn.Linear(8, 2)
    parameters = server.rpc_sync().references() + [rpc.RRef(p) for p in head.parameters()]
    optimizer = DistributedOptimizer(torch.optim.SGD, parameters, lr=0.1)
    for step in range(int(os.environ.get("STEPS", 6))):
        with dist_autograd.context() as context:
            x = torch.randn(16, 16)
            hidden = server.rpc_sync().forward(x)
            loss = nn.functional.cross_entropy(head(hidden), (x.sum(1) > 0).long())
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
        print(f"step {step} loss {loss.item():.4f}", flush=True)
rpc.shutdown()
