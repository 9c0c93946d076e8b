"""Warns, logs and raises inside what the agent wraps, and says each time where that was: the same
with and without pardbg. One rank."""

from __future__ import annotations

import logging
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR


def says(depth: int = 14) -> None:
    """A warning and a line of the log for this caller's callers."""
    for level in range(2, 2 + depth):
        warnings.warn(f"level {level}", stacklevel=level)
        if sys.version_info >= (3, 11):  # before, logging counts every frame
            logging.warning("level %d", level, stacklevel=level)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        says()
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        says()
        (x,) = ctx.saved_tensors
        if x.abs().sum() > 1000:
            raise ValueError("too large")
        return 2 * x * grads[0]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        says()
        if x.shape[-1] != 4:
            raise LookupError("not four")
        y: torch.Tensor = Square.apply(self.layer(x))
        return y


class Plain(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        says()
        if closure is not None:
            raise RuntimeError("no closures")
        return super().step()


def train() -> None:
    model = DistributedDataParallel(Net())
    optimizer = Plain(model.parameters(), lr=0.01)
    scheduler = StepLR(optimizer, 1)
    scheduler.step()  # too early: torch warns, and says where
    x = torch.ones(2, 4)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        scheduler.step()
    attempt(lambda: model(torch.ones(2, 5)))
    attempt(lambda: optimizer.step(print))
    attempt(lambda: model(1e4 * x).sum().backward())
    attempt(lambda: torch.autograd.backward(x))


def pipeline() -> None:
    stage = PipelineStage(Net(), 0, 1, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda y, t: (says(), (y - t).sum())[1])
    schedule.step(torch.ones(2, 4), target=torch.zeros(2, 4))
    attempt(lambda: schedule.step(torch.ones(2, 4), target=torch.zeros(3, 3)))


def communicate() -> None:
    x = torch.ones(4)
    says()
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    dist.barrier()
    attempt(lambda: dist.all_reduce("x"))
    attempt(lambda: dist.broadcast(x, 7))
    attempt(lambda: dist.send(x, 0))
    attempt(lambda: dist.new_group([5]))
    attempt(lambda: dist.init_process_group("gloo"))
    attempt(lambda: dist.all_gather([x[:2]], x))
    attempt(lambda: dist.all_to_all_single(x, x[:3]))
    store = dist.distributed_c10d._get_default_store()
    attempt(lambda: store.wait(["never"], timedelta(milliseconds=10)))
    attempt(lambda: torch.load("/nowhere"))
    with tempfile.TemporaryFile() as file:
        attempt(lambda: torch.save(lambda: 0, file))
    dist.reduce_op.SUM  # noqa: B018 - deprecated: torch warns, and says where
    attempt(lambda: dist._all_gather_base(x, x))


def attempt(call: Callable[[], Any]) -> None:
    try:
        call()
    except Exception:  # noqa: BLE001 - it is printed
        traceback.print_exc()


def main() -> None:
    warnings.simplefilter("always")
    logging.basicConfig(format="%(filename)s:%(lineno)d %(funcName)s %(message)s")
    torch.manual_seed(0)
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    train()
    pipeline()
    communicate()
    sys.excepthook = lambda kind, value, trace: traceback.print_exception(kind, value, trace)
    Net()(torch.ones(5))


if __name__ == "__main__":
    main()
