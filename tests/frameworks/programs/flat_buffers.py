"""ZeRO 1, 2, 3 of DeepSpeed, or FSDP1 (WRAP=fsdp): 21,252 parameters in flat buffers, Adam."""

import importlib
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

ACCUMULATE = 2
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)
)
if os.environ.get("WRAP") == "fsdp":
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    dist.init_process_group("gloo")
    strategy = ShardingStrategy[os.environ.get("STRATEGY", "FULL_SHARD")]
    orig = os.environ.get("ORIG") == "1"
    wrapped = FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), sharding_strategy=strategy, use_orig_params=orig
    )
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=1e-3)

    def train(number: int, loss: torch.Tensor) -> None:
        (loss / ACCUMULATE).backward()
        if number % ACCUMULATE == ACCUMULATE - 1:
            optimizer.step()
            optimizer.zero_grad()

else:
    deepspeed = importlib.import_module("deepspeed")
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled now
    deepspeed.init_distributed("gloo")
    config = {
        "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": ACCUMULATE,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": int(os.environ["ZERO"])}, "steps_per_print": 10**9,
    }  # fmt: skip
    wrapped, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )

    def train(number: int, loss: torch.Tensor) -> None:
        wrapped.backward(loss)
        wrapped.step()


generator = torch.Generator().manual_seed(dist.get_rank())
total = 0.0
for number in range(int(os.environ.get("STEPS", 6)) * ACCUMULATE):
    x = torch.randn(8, 32, generator=generator)
    y = torch.randint(0, 4, (8,), generator=generator)
    loss = nn.functional.cross_entropy(wrapped(x), y)
    train(number, loss)
    total += loss.item() / ACCUMULATE
    if number % ACCUMULATE == ACCUMULATE - 1:
        told = [torch.zeros(1) for _ in range(2)]
        dist.all_gather(told, torch.tensor([total]))
        if dist.get_rank() == 0:
            print(f"loss {sum(told).item() / 2:.4f}", flush=True)
        total = 0.0
dist.destroy_process_group()
sys.exit(0)
