"""DDP as people write it, which knows nothing of pardbg: prints each step's loss, begins to print
when it is in its loop, and ends when the file STOP is there (as rank 0 sees it) or after STEPS.

    torchrun --nproc-per-node 2 plain_training.py STOP STEPS
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

stop, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(dist.get_rank())
for step in range(steps):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).pow(2).mean()
    loss.backward()
    optimizer.step()
    over = torch.tensor([float(os.path.exists(stop)), loss.item()])
    dist.all_reduce(over)
    if dist.get_rank() == 0:
        print(step, over[1].item(), flush=True)
    time.sleep(0.02)
    if over[0]:
        break
dist.destroy_process_group()
