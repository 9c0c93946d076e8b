"""A rank of a pipeline that runs a schedule from a CSV as torch does, and says how it ended.

Exit 0: ran, gradients as without a pipeline; 3: ran, gradients differ; 1: it failed; 4: torch did
not load it; 5: nor found an order for its messages; 6: no rank of the job has begun an action for
SECONDS. ``python -m … CSV FORMAT STAGES MICROBATCHES SECONDS``
"""

from __future__ import annotations

import csv
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

WIDTH, ROWS = 4, 2
STEPS = 2
"""A receive too many takes the next step's message; what comes too late is the last step's."""


def layer(stage: int) -> torch.nn.Module:
    torch.manual_seed(stage)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())


def loss_of(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((out - target) ** 2).sum()


def reference(num_stages: int, x: torch.Tensor, y: torch.Tensor, count: int) -> list[torch.Tensor]:
    """The gradient of each stage's weight, the mean over microbatches."""
    stages = [layer(stage) for stage in range(num_stages)]
    for one, target in zip(x.chunk(count), y.chunk(count), strict=True):
        for stage in stages:
            one = stage(one)
        (loss_of(one, target) / count).backward()
    return [stage[0].weight.grad for stage in stages]


def shape(grad: bool) -> torch.Tensor:
    """What a stage takes or gives: said ahead, so that no stage has to ask another one."""
    return torch.empty(ROWS, WIDTH, requires_grad=grad)


def watch(path: str, seconds: int) -> None:
    """End this process when no rank of the job goes on: on a loaded machine all are slow."""
    begun = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    name_of = schedules._get_profiler_function_name

    def named(action: _Action) -> str:
        os.write(begun, b".")
        return name_of(action)

    def look() -> None:
        size, since = -1, time.monotonic()
        while time.monotonic() - since < seconds:
            now = os.fstat(begun).st_size
            if now != size:
                size, since = now, time.monotonic()
            time.sleep(0.2)
        os._exit(6)

    schedules._get_profiler_function_name = named
    threading.Thread(target=look, daemon=True).start()


def main() -> int:
    path, form, stages, count, seconds = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    signal.alarm(300)  # its default action ends a rank that waits in C++, too
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with open(path, newline="") as file:
        rows = [[_Action.from_str(word) for word in row] for row in csv.reader(file)]
    mine = sorted({a.stage_index for a in rows[rank] if a is not None and a.stage_index >= 0})
    torch.manual_seed(1000)
    x, y = torch.randn(ROWS * count, WIDTH), torch.randn(ROWS * count, WIDTH)
    made = [
        PipelineStage(layer(s), s, stages, torch.device("cpu"), input_args=(shape(s > 0),),
                      output_args=(shape(True),))
        for s in mine
    ]  # fmt: skip
    schedule = _PipelineScheduleRuntime(made, count, loss_fn=loss_of)
    try:
        schedule._load_csv(path, form)
    except AssertionError as refused:
        return 5 if "Malformed compute schedule" in str(refused) else 4
    dist.barrier()
    watch(f"{path}.begun", seconds)
    same = True
    for step in range(STEPS):
        for stage in made:
            stage.submod.zero_grad()
        schedule.step(*([x] if 0 in mine else []), target=y if stages - 1 in mine else None)
        wanted = reference(stages, x, y, count)
        if form == "compute_comms" and not any("REDUCE_GRAD" in str(a) for r in rows for a in r):
            wanted = [grad * count for grad in wanted]  # REDUCE_GRAD is where torch takes the mean
        same = same and all(
            stage.submod[0].weight.grad is not None
            and torch.allclose(stage.submod[0].weight.grad, wanted[stage.stage_index], atol=1e-5)
            for stage in made
        )
        x = x + step + 1
    print("same" if same else "differs", flush=True)
    dist.barrier()
    return 0 if same else 3


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # what torch does at exit is not what is asked here
