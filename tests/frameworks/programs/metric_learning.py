"""pytorch-metric-learning: a loss and a miner over the embeddings of all ranks."""

import torch
import torch.distributed as dist
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.utils import distributed
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
rank = dist.get_rank()
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
)
loss_of = distributed.DistributedLossWrapper(losses.ContrastiveLoss())
mine = distributed.DistributedMinerWrapper(miners.MultiSimilarityMiner())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(rank)
for step in range(6):
    x = torch.randn(16, 32, generator=generator)
    y = torch.randint(0, 4, (16,), generator=generator)
    made = model(x)
    loss = loss_of(made, y, mine(made, y))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
