"""Ranks train the same models on the CPU and on the simulated accelerator: their losses."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from pardbg_agent import core
from tests.accelerator.programs.watched_jobs import agents_thread
from tests.processes import wait_until

WIDTH = 16
STEPS = 3
PIPELINES = {
    "1f1b": ("Schedule1F1B", lambda rank, size: [rank]),
    "interleaved": ("ScheduleInterleaved1F1B", lambda rank, size: [rank, rank + size]),
    "zb": ("ScheduleInterleavedZeroBubble", lambda rank, size: [rank, rank + size]),
    "zbv": ("ScheduleZBVZeroBubble", lambda rank, size: [rank, 2 * size - 1 - rank]),
}


def data(seed: int, device: str) -> torch.Tensor:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(seed)).to(device)


def adam(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=1e-2, foreach=False)


def model(device: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.GELU(),
        nn.Linear(64, WIDTH),
    ).to(device)  # fmt: skip


def ddp(device: str) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model(device), bucket_cap_mb=0.01)


def fsdp2(device: str) -> nn.Module:
    whole = model(device)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for layer in whole:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(whole, mesh=mesh)
    return whole


def tp(device: str) -> nn.Module:
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH)).to(device)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    return parallelize_module(whole, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def train(make: Callable[[str], nn.Module], device: str) -> list[float]:
    net, losses = make(device), []
    optimizer = adam(net.parameters())
    for step in range(STEPS):
        x = data(100 * step + (0 if make is tp else dist.get_rank()), device)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), torch.tanh(x))
        loss.backward()
        if make is not tp:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=False)
        optimizer.step()
        losses.append(loss.item())
    return losses


def pipeline(kind: str, device: str) -> list[float]:
    schedule_name, place = PIPELINES[kind]
    rank, size = dist.get_rank(), dist.get_world_size()
    own = place(rank, size)
    total, last = size * len(own), size * len(own) - 1 in own
    modules = []
    for index in own:
        torch.manual_seed(index)
        modules.append(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()).to(device))
    stages = [
        PipelineStage(module, index, total, torch.device(device))
        for module, index in zip(modules, own, strict=True)
    ]
    schedule = getattr(schedules, schedule_name)(
        stages[0] if len(own) == 1 else stages, 4, loss_fn=nn.functional.mse_loss
    )
    optimizer = adam([p for module in modules for p in module.parameters()])
    losses = []
    for step in range(STEPS):
        x, parts = data(step, device), []
        optimizer.zero_grad()
        schedule.step(
            *([x] if 0 in own else []),
            **({"target": torch.tanh(x), "losses": parts} if last else {}),
        )
        optimizer.step()
        losses.append(sum(part.item() for part in parts))
    return losses


def main() -> None:
    import pardbg.lab.sim.device as sim

    warnings.filterwarnings("ignore")
    sim.settings.launch_ns = 20_000
    sim.take_log()
    dist.init_process_group(sim.GROUP)
    if core.CURRENT is not None:
        threading.Thread(target=agents_thread, daemon=True).start()
    made = {}
    for make in (ddp, fsdp2, tp):
        made[make.__name__] = [train(make, device) for device in ("cpu", sim.NAME)]
    for kind in PIPELINES:
        made[kind] = [pipeline(kind, device) for device in ("cpu", sim.NAME)]
    ops = sorted({entry[0] for entry in sim.take_log()})
    device = None if core.CURRENT is None else core.CURRENT.device
    if device is not None:
        wait_until(lambda: not device.poll(), what="all times read")
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps({"losses": made, "ops": ops, "way": type(device).__name__}))


if __name__ == "__main__":
    main()
