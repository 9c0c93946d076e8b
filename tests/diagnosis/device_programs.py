"""A training on simulated accelerators, as somebody would write it for a GPU, with one thing that
goes wrong: `… -m tests.diagnosis.device_programs JOB WHAT RANK STEP [AMOUNT]`. Hosts run ahead of
their devices, whose costs are stated. Nothing of pardbg's debugger is in it."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import pardbg.lab.sim.device as sim
from tests.accelerator.programs.spending import spend_in

STEPS = 2000
WIDTH, LAYERS, MICROBATCHES = 16, 4, 8
HIDDEN = 48
"""Of a tensor-parallel pair: 2, 3 or 4 ranks have equal shares."""
FORWARD_MS, BACKWARD_MS = 8.0, 16.0
"""Of a layer: a step of four is 96 ms, several times what a host takes to launch it."""
QUEUE = 200
"""Launches in flight before the host waits, as a GPU's."""


class Layer(nn.Module):
    """A linear layer with stated times; on one rank its launch may cost the host time."""

    host_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.host_s:
            time.sleep(self.host_s)
        return spend_in(self.linear(x), FORWARD_MS, BACKWARD_MS)


class Pair(Layer):
    """Two linear layers, the first cut by columns, the second by rows: an op each way, which the
    stream waits for at once."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.back = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.back(super().forward(x))
        return y

    def cut(self) -> None:
        mesh = init_device_mesh("sim", (dist.get_world_size(),))
        plan = {"linear": ColwiseParallel(), "back": RowwiseParallel()}
        parallelize_module(self, mesh, plan)


class Training(Protocol):
    """One rank's job."""

    def step(self) -> None:
        """Launch a training step."""


class Replica:
    """DDP, FSDP2, tensor parallelism, or a loop that averages its gradients itself."""

    def __init__(self, job: str) -> None:
        layer = Pair if job == "tp" else Layer
        model: Any = nn.Sequential(*(layer() for _ in range(LAYERS))).to("sim")
        if job == "ddp":
            model = DistributedDataParallel(model)
        elif job == "fsdp":
            for layer in model:
                fully_shard(layer)
            fully_shard(model)
        elif job == "tp":
            for layer in model:
                layer.cut()
        self.model, self.averages = model, job == "loop"
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        if job != "tp":
            torch.manual_seed(dist.get_rank())
        self.x = torch.randn(8, WIDTH, device="sim")

    def step(self) -> None:
        self.model(self.x).pow(2).mean().backward()
        if self.averages:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()


class Pipeline:
    """1F1B, a layer per stage."""

    def __init__(self) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        module = Layer().to("sim")
        stage = PipelineStage(module, rank, size, torch.device("sim"))
        self.schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
        self.optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        self.x = torch.randn(MICROBATCHES, WIDTH, device="sim")
        self.first, self.last = rank == 0, rank == size - 1

    def step(self) -> None:
        self.schedule.step(
            *([self.x] if self.first else []),
            **({"target": self.x, "losses": []} if self.last else {}),
        )
        self.optimizer.step()
        self.optimizer.zero_grad()


class Fault:
    """One thing that goes wrong on a rank, from a step on."""

    def __init__(self, what: str, amount: float) -> None:
        self.amount = amount
        self.begin: Callable[[], None] = getattr(self, what.replace("-", "_"), self.nothing)
        self.each_s = amount if what == "late-rank" else 0.0

    def nothing(self) -> None:
        """Nothing is wrong, or it is at each step."""

    def slow_device(self) -> None:
        """Each kernel takes so many times as long."""
        sim.settings.speed = self.amount

    def stopped_device(self) -> None:
        """The device never gets past this, and the host launches on."""
        sim.hold()

    def host_bound(self) -> None:
        """Each layer's launch takes the host so many seconds."""
        Layer.host_s = self.amount

    def other_op(self) -> None:
        dist.broadcast(torch.ones(64, device="sim"), 0)

    def other_size(self) -> None:
        dist.all_reduce(torch.ones(32, device="sim"))

    def other_dtype(self) -> None:
        dist.all_reduce(torch.ones(64, device="sim", dtype=torch.int32))


def agreed() -> None:
    """What the other ranks issue where one issues something else."""
    dist.all_reduce(torch.ones(64, device="sim"))


def train(job: str, what: str, rank: int, step: int, amount: float, every: int) -> None:
    """Train, and look at the loss ``every`` so many steps (0: never)."""
    training: Training = Pipeline() if job == "1f1b" else Replica(job)
    fault = Fault(what, amount) if dist.get_rank() == rank else None
    sim.settings.queue, sim.settings.comm_default_ns = QUEUE, 300_000
    total = torch.zeros(1, device="sim")
    for number in range(STEPS):
        if number == step:
            if fault is not None:
                fault.begin()
            elif what.startswith("other-"):
                agreed()
        if fault is not None and number >= step:
            time.sleep(fault.each_s)  # a batch that comes late
        training.step()
        if every and number % every == 0:
            total.item()


def main() -> None:
    warnings.filterwarnings("ignore")
    job, what, rank, step, amount, every = sys.argv[1:7]
    dist.init_process_group(sim.GROUP)
    torch.manual_seed(0)
    train(job, what, int(rank), int(step), float(amount), int(every))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
