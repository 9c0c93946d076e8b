"""fairscale. FS=oss (OSS + ShardedDataParallel) | fsdp"""

import os
import warnings

import torch
import torch.distributed as dist
import torch.nn as nn

warnings.filterwarnings("ignore")
dist.init_process_group("gloo")
torch.manual_seed(0)
k = os.environ.get("FS", "oss")
m = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 4))
if k == "oss":
    from fairscale.nn.data_parallel import ShardedDataParallel as SDP
    from fairscale.optim.oss import OSS

    o = OSS(m.parameters(), optim=torch.optim.Adam, lr=1e-3)
    m = SDP(m, o)
else:
    from fairscale.nn.data_parallel import FullyShardedDataParallel as F

    m = F(m, compute_device=torch.device("cpu"))
    o = torch.optim.Adam(m.parameters(), 1e-3)
g = torch.Generator().manual_seed(dist.get_rank())
for s in range(int(os.environ.get("STEPS", 6))):
    x = torch.randn(8, 32, generator=g)
    l = nn.functional.cross_entropy(m(x), x[:, :4].argmax(1))
    o.zero_grad()
    l.backward()
    o.step()
    if dist.get_rank() == 0:
        print(f"step {s} loss {l.item():.4f}", flush=True)
dist.destroy_process_group()
