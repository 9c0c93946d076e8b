"""Megatron-core's own schedules on a small module. MEG_VPP=2: interleaved; MEG_PP: stages."""

import importlib
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
import warnings

warnings.filterwarnings("ignore")
importlib.import_module("cpu_for_cuda")  # before the framework looks at torch.cuda
import torch
import torch.distributed as dist
import torch.nn as nn
from megatron.core import ModelParallelConfig
from megatron.core import parallel_state as ps
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func

H, S, B, M, STEPS = 64, 16, 2, int(os.environ.get("MEG_M", 8)), int(os.environ.get("STEPS", 6))
VPP = int(os.environ.get("MEG_VPP", 0))
PP = int(os.environ.get("MEG_PP", 0))
dist.init_process_group("gloo")
W = dist.get_world_size()
PP = PP or W
ps.initialize_model_parallel(1, PP, virtual_pipeline_model_parallel_size=VPP or None)
cfg = ModelParallelConfig(
    pipeline_model_parallel_size=PP,
    virtual_pipeline_model_parallel_size=VPP or None,
    pipeline_dtype=torch.float32,
    deallocate_pipeline_outputs=bool(int(os.environ.get("MEG_DEALLOC", 1))),
    batch_p2p_comm=False,
)
cfg.hidden_size = H
if VPP:
    cfg.microbatch_group_size_per_vp_stage = PP
cfg.microbatch_group_size_per_vp_stage = PP
for k in ("fine_grained_activation_offloading", "num_moe_experts", "mtp_num_layers"):
    if not hasattr(cfg, k):
        setattr(cfg, k, None)


class Chunk(nn.Module):
    def __init__(self, vp):
        super().__init__()
        self.config = cfg
        self.vp_stage = vp
        self.model_type = ModelType.encoder_or_decoder
        self.net = nn.Sequential(nn.Linear(H, 4 * H), nn.GELU(), nn.Linear(4 * H, H))
        self.input_tensor = None

    def set_input_tensor(self, t):
        self.input_tensor = t[0] if isinstance(t, list) else t

    def forward(self, x):
        if self.input_tensor is not None:
            x = self.input_tensor
        return x + self.net(x)


torch.manual_seed(1 + ps.get_pipeline_model_parallel_rank())
model = [Chunk(v) for v in range(VPP or 1)]
if W > PP:  # DP: Megatron's own DDP with its flat buffers
    pass
opt = torch.optim.Adam([p for m in model for p in m.parameters()], lr=1e-3)


def data():
    g = torch.Generator().manual_seed(0)
    while True:
        yield torch.randn(S, B, H, generator=g)


its = [data() for _ in model]


def loss_func(out):
    l = out.float().pow(2).mean()
    return l, {"loss": l.detach().clone()}


def fstep(it, m):
    return m(next(it)), loss_func


fb = get_forward_backward_func()
for step in range(STEPS):
    opt.zero_grad()
    out = fb(
        forward_step_func=fstep,
        data_iterator=its if VPP else its[0],
        model=model if VPP else model[0],
        num_microbatches=M,
        seq_length=S,
        micro_batch_size=B,
        forward_only=False,
    )
    opt.step()
    if out:
        mean = sum(float(o["loss"]) for o in out) / len(out)
        print(
            f" iteration {step + 1:8d}/{STEPS:8d} | lm loss: {mean:.6E} |",
            flush=True,
        )
dist.barrier()
dist.destroy_process_group()
