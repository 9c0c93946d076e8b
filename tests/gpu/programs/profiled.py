"""``profiled DEVICE FILE``: 1F1B whose last step torch.profiler sees too; FILE gets, of each rank,
the spans of its actions on the device as Kineto has them, and the length of its window."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining as pp
from torch.profiler import ProfilerActivity, profile, record_function

from pardbg.lab.recipes.launch import share_gpus
from tests.gpu.devices import device
from tests.gpu.programs.ranks import BACKENDS

STEPS, MICROBATCHES, ROWS = 6, 8, 1024
WIDTH = int(os.environ.get("GPU_WIDTH", "4096"))
MARK = "action "


def named(stage: Any, method: str, letter: str) -> None:
    """Have the profiler tell each call of a stage's method as one range."""
    plain = getattr(stage, method)

    def call(microbatch: int, *args: Any, **kwargs: Any) -> Any:
        with record_function(f"{MARK}{letter}{microbatch}"):
            return plain(microbatch, *args, **kwargs)

    setattr(stage, method, call)


def kineto(seen: Any) -> dict[str, tuple[float, float]]:
    """Return (begin, end) of each range on the device, us: its first kernel's begin and its last
    one's end. A range's kernels are those that any thread launched in it (autograd has its own)."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        seen.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    ranges = [e for e in events if e.get("cat") == "user_annotation" and MARK in e["name"]]
    launched = {
        e["args"]["correlation"]: e["ts"] for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver")
    }  # fmt: skip
    kernels = [
        (launched.get(e["args"]["correlation"], 0.0), e["ts"], e["ts"] + e["dur"]) for e in events
        if e.get("cat") == "kernel" and "nccl" not in e["name"].lower()
    ]  # fmt: skip
    found = {}
    for one in ranges:
        begin, end = one["ts"], one["ts"] + one["dur"]
        own = [(t0, t1) for at, t0, t1 in kernels if begin <= at <= end]
        if own:
            name = one["name"].partition(MARK)[2]
            found[name] = min(t0 for t0, _ in own), max(t1 for _, t1 in own)
    return found


def main() -> None:
    warnings.filterwarnings("ignore")
    there, told = device(sys.argv[1]), sys.argv[2]
    share_gpus()
    dist.init_process_group(BACKENDS[there.name])
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    on = torch.device(there.name, torch.accelerator.current_device_index())
    part = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))).to(on)
    stage = pp.PipelineStage(part, rank, size, on)
    named(stage, "forward_one_chunk", "F")
    named(stage, "backward_one_chunk", "B")
    run = pp.Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=1e-4)
    x = torch.randn(ROWS * MICROBATCHES, WIDTH, device=on)

    def step() -> None:
        optimizer.zero_grad()
        run.step(*([x] if rank == 0 else []), **({"target": x} if rank == size - 1 else {}))
        optimizer.step()
        torch.accelerator.synchronize()
        dist.barrier()

    for _ in range(STEPS - 1):
        step()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        step()
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, kineto(seen))
    if rank == 0:
        Path(told).write_text(json.dumps(everyone))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
