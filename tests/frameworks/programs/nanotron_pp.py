"""nanotron's own PipelineEngines over PipelineBlocks. NANO=1f1b|afab. CUDA-only lines patched."""

import importlib
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))

sys.path[:0] = os.environ.get("PARDBG_FRAMEWORKS_PATH", "").split(":")
importlib.import_module("cpu_for_cuda")  # before the framework looks at torch.cuda
import torch
import torch.distributed as tdist

torch.cuda.set_device = lambda *a: None
torch.cuda.device = lambda i: i
from math import ceil

import nanotron.distributed as nd
from nanotron import distributed as dist
from torch import nn


def _init():
    tdist.init_process_group("gloo")
    return True


nd.initialize_torch_distributed = _init
_ng = tdist.new_group
for _m in (tdist, tdist.distributed_c10d, nd, nd.dist if hasattr(nd, "dist") else nd):
    _m.new_group = lambda *a, **k: _ng(*a, **{**k, "backend": "gloo"})
from nanotron.parallel import ParallelContext
from nanotron.parallel.pipeline_parallel.block import PipelineBlock
from nanotron.parallel.pipeline_parallel.engine import (
    AllForwardAllBackwardPipelineEngine,
    OneForwardOneBackwardPipelineEngine,
)
from nanotron.parallel.pipeline_parallel.p2p import P2P
from nanotron.parallel.pipeline_parallel.tensor_pointer import TensorPointer

W = int(os.environ["WORLD_SIZE"])
PP = int(os.environ.get("NANO_PP", W))
D, M = 32, 6
pc = ParallelContext(
    data_parallel_size=W // PP, pipeline_parallel_size=PP, tensor_parallel_size=1, backend="nccl"
)  # asserts "nccl"; new_group is patched to gloo
p2p = P2P(pg=pc.pp_pg, device=torch.device("cpu"))
torch.manual_seed(0)


def block(builder, i, **kw):
    return PipelineBlock(
        p2p=p2p,
        module_builder=builder,
        module_kwargs=kw,
        module_input_keys={i},
        module_output_keys={"output"},
    )


class Model(nn.Module):
    def __init__(s):
        super().__init__()
        s.layers = nn.ModuleList(
            [
                m
                for _ in range(2 * PP)
                for m in (
                    block(nn.Linear, "input", in_features=D, out_features=D),
                    block(nn.Tanh, "input"),
                )
            ]
        )
        s.loss = block(lambda: lambda x: x.pow(2).mean(), "x")

    def forward(s, x):
        for l in s.layers:
            x = l(input=x)["output"]
        return s.loss(x=x)["output"]


model = Model()
blocks = [m for m in model.modules() if isinstance(m, PipelineBlock)]
n = ceil(len(blocks) / PP)
for i, b in enumerate(blocks):
    b.build_and_set_rank(min(i // n, PP - 1))
r = dist.get_rank(pc.pp_pg)
if W > PP:
    model = nn.parallel.DistributedDataParallel(model, process_group=pc.dp_pg)
opt = torch.optim.AdamW(model.parameters(), 1e-2)
eng = (
    AllForwardAllBackwardPipelineEngine
    if os.environ.get("NANO") == "afab"
    else OneForwardOneBackwardPipelineEngine
)()
g = torch.Generator().manual_seed(0)
for step in range(int(os.environ.get("STEPS", 6))):
    batch = [
        {"x": torch.randn(4, D, generator=g) if r == 0 else TensorPointer(group_rank=0)}
        for _ in range(M)
    ]
    out = eng.train_batch_iter(
        model=model, pg=pc.pp_pg, batch=iter(batch), nb_microbatches=M, grad_accumulator=None
    )
    opt.step()
    opt.zero_grad()
    if r == PP - 1 and dist.get_rank(pc.dp_pg) == 0:
        print(
            f"iteration: {step + 1} / 6 | lm_loss: {sum(float(o['loss']) for o in out):.4f}",
            flush=True,
        )
tdist.barrier()
tdist.destroy_process_group()
