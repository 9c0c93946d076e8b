"""DeepSpeed's PipelineEngine. DS_PP: stages (the world); DS_DUALV=1: DualPipeV; ZERO: 0 or 1."""

import logging
import os

import deepspeed
import torch
import torch.nn as nn
from deepspeed.utils import logger

logger.setLevel(logging.WARNING)
from deepspeed.pipe import LayerSpec, PipelineModule

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = (
    False  # else a C++ extension is JIT-compiled at start (20-60 s)
)
deepspeed.init_distributed("gloo")
W = torch.distributed.get_world_size()
PP = int(os.environ.get("DS_PP", W))
M = int(os.environ.get("DS_M", 8))
D = 64
torch.manual_seed(0)


class Blk(nn.Module):
    def __init__(s):
        super().__init__()
        s.f = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(s, x):
        return x + s.f(x)


layers = [LayerSpec(Blk) for _ in range(8)]
loss_fn = lambda o, y: (o - y).pow(2).mean()
kw = {}
if os.environ.get("DS_DUALV"):
    from deepspeed.pipe import DualPipeVModule as PM
else:
    PM = PipelineModule
model = PM(layers=layers, num_stages=PP, loss_fn=loss_fn, partition_method="uniform")
cfg = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": M,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": int(os.environ.get("ZERO", 0))},
    "steps_per_print": 2,
    "pipeline": {"activation_checkpoint_interval": 0},
}
engine, *_ = deepspeed.initialize(
    model=model, model_parameters=list(model.parameters()), config=cfg
)
print(
    "engine", type(engine).__name__, "stage", engine.stage_id, "of", engine.num_stages, flush=True
)


def data():
    g = torch.Generator().manual_seed(engine.grid.get_data_parallel_rank())
    while True:
        x = torch.randn(4, D, generator=g)
        yield x, x.roll(1, 1)


it = data()
for step in range(int(os.environ.get("STEPS", 6))):
    loss = engine.train_batch(it)
    if engine.global_rank == 0:
        print(f"step {step} loss {float(loss):.4f}", flush=True)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
