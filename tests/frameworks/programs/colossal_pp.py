"""ColossalAI's pipeline schedules on tiny modules. COL=1f1b, interleaved or zbv."""

import os
import warnings

warnings.filterwarnings("ignore")
import torch
import torch.distributed as dist
import torch.nn as nn

torch.distributed.is_hccl_available = lambda: False
from colossalai.accelerator import set_accelerator
from colossalai.cluster import ProcessGroupMesh
from colossalai.interface import OptimizerWrapper
from colossalai.pipeline.stage_manager import PipelineStageManager

if not torch.cuda.is_available():
    set_accelerator("cpu")
kind = os.environ.get("COL", "1f1b")
D, M, MB = 32, 8, 2
dist.init_process_group("gloo")
W = dist.get_world_size()
r = dist.get_rank()
mesh = ProcessGroupMesh(W)
torch.manual_seed(0)


class Blk(nn.Module):
    def __init__(s):
        super().__init__()
        s.f = nn.Linear(D, D)

    def forward(s, x):
        return x + torch.tanh(s.f(x))


class Stage(nn.Module):
    def __init__(s, first, n):
        super().__init__()
        s.first = first
        s.l = nn.Sequential(*[Blk() for _ in range(n)])

    def forward(s, data, hidden_states=None, stage_index=None, **kw):
        return_x = s.l(data if hidden_states is None else hidden_states)
        return {"hidden_states": return_x}


def crit(out, mb):
    o = out["hidden_states"] if isinstance(out, dict) else out
    return (o - mb["data"].roll(1, 1)).pow(2).mean()


if kind == "1f1b":
    from colossalai.pipeline.schedule.one_f_one_b import OneForwardOneBackwardSchedule

    sm = PipelineStageManager(mesh, pipeline_axis=0)
    sched = OneForwardOneBackwardSchedule(sm, num_microbatches=M)
    model = Stage(r == 0, 2)
elif kind == "interleaved":
    from colossalai.pipeline.schedule.interleaved_pp import InterleavedSchedule

    sm = PipelineStageManager(mesh, pipeline_axis=0, enable_interleave=True, num_model_chunks=2)
    sched = InterleavedSchedule(sm, num_model_chunks=2, num_microbatch=M, overlap_p2p=False)
    model = nn.ModuleList([Stage(r == 0, 1), Stage(False, 1)])
else:
    from colossalai.pipeline.schedule.v_schedule import PipelineGraph
    from colossalai.pipeline.schedule.zero_bubble_pp import ZeroBubbleVPipeScheduler

    sm = PipelineStageManager(
        mesh, pipeline_axis=0, enable_interleave=True, use_zbv=True, num_model_chunks=2
    )
    gsched = PipelineGraph(W, M, 6, 6, 6, 4, 1, -0.5, -0.5).get_v_schedule()
    sm.stage_indices = [(0, 1), (1, 2)]
    sched = ZeroBubbleVPipeScheduler(
        sm, gsched, num_model_chunks=2, num_microbatch=M, overlap_p2p=False
    )

    class Both(nn.Module):
        def __init__(s):
            super().__init__()
            s.c = nn.ModuleList([Stage(r == 0, 1), Stage(False, 1)])

        def forward(s, data, hidden_states=None, stage_index=None, **kw):
            return s.c[stage_index[0]](data, hidden_states)

        def no_sync(s):
            import contextlib

            return contextlib.nullcontext()

    model = Both()


class Opt(OptimizerWrapper):
    def no_sync(self):
        import contextlib

        return contextlib.nullcontext()


opt = Opt(torch.optim.SGD(model.parameters(), lr=0.1))
g = torch.Generator().manual_seed(0)
for step in range(int(os.environ.get("STEPS", 6))):
    batch = {"data": torch.randn(M * MB, D, generator=g)}
    res = sched.forward_backward_step(model, iter([batch]), crit, opt, return_loss=True)
    opt.step()
    opt.zero_grad()
    if res["loss"] is not None:
        print(f"step {step} loss {float(res['loss']):.4f}", flush=True)
dist.barrier()
dist.destroy_process_group()
