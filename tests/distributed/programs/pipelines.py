"""``pipelines.py SCHEDULE[,SCHEDULE] [STEPS]``: small pipelines under torchrun, one after another.
Prints exact losses and, at the end of each, the sum of the parameters."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

WIDTH, BATCH = 16, 16
STAGES_PER_RANK = {"GPipe": 1, "1F1B": 1}
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


def stage_indices(name: str, rank: int, size: int) -> list[int]:
    """The stages of a rank: one, two in a loop, or two in a V."""
    if STAGES_PER_RANK.get(name, 2) == 1:
        return [rank]
    return [rank, 2 * size - 1 - rank] if name in V_SHAPED else [rank, rank + size]


def say(rank: int, text: str) -> None:
    sys.stdout.write(f"[rank{rank}] {text}\n")  # one write: ranks share the pipe
    sys.stdout.flush()


def main() -> None:
    names, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2
    dist.init_process_group("gloo")
    for name in names.split(","):
        train(name, steps)
        gc.collect()  # the next one's optimizer is to be the only one
    dist.destroy_process_group()


def train(name: str, steps: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    count = size * STAGES_PER_RANK.get(name, 2)
    microbatches = 2 * count if name in V_SHAPED else 8
    stages = []
    for index in stage_indices(name, rank, size):
        torch.manual_seed(index)
        module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())
        stages.append(PipelineStage(module, index, count, torch.device("cpu")))
    kind: Any = get_schedule_class(name)
    loss_fn = torch.nn.MSELoss()
    if STAGES_PER_RANK.get(name, 2) == 1:
        schedule = kind(stages[0], microbatches, loss_fn=loss_fn)
    else:
        schedule = kind(stages, microbatches, loss_fn=loss_fn)
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    torch.manual_seed(1234)
    last = any(stage.is_last for stage in stages)
    for _ in range(steps):
        x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
        losses: list[torch.Tensor] = []
        inputs = (x,) if any(stage.is_first for stage in stages) else ()
        schedule.step(*inputs, target=y if last else None, losses=losses if last else None)
        if os.environ.get("OPTIMIZER", "1") == "1":
            optimizer.step()
            optimizer.zero_grad()
        if last:
            say(rank, f"losses {[loss.item().hex() for loss in losses]}")
    total = sum(p.double().sum().item() for p in parameters)
    say(rank, f"{name} parameters {total.hex()}")


if __name__ == "__main__":
    main()
