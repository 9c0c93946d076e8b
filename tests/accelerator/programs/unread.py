"""Two replicas on the simulated accelerator: one op of each kind in a step of its own, whose input
can be read late or not; then a loss that is NaN."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from pardbg_agent import core
from tests.accelerator.programs.watched_jobs import agents_thread
from tests.processes import wait_until

SIZE = 8192
FILLS = "too many awaited"


class Named(torch.Tensor):
    """A subclass, whose ops a program may have changed."""


class Counts(TorchDispatchMode):
    """A mode that sees each op, as counters of operations are."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        return func(*args, **(kwargs or {}))


def full(**how: Any) -> torch.Tensor:
    import pardbg.lab.sim.device as sim

    return torch.ones(SIZE, device=sim.NAME, **how)


def message(tensor: torch.Tensor) -> None:
    send = dist.get_rank() == 0
    dist.send(tensor, 1) if send else dist.recv(tensor, 0)


def asynchronous(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor, async_op=True).wait()


def batched(tensor: torch.Tensor) -> None:
    rank = dist.get_rank()
    ops = [dist.P2POp(dist.isend, tensor, 1 - rank), dist.P2POp(dist.irecv, full(), 1 - rank)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def counted() -> None:
    with Counts():
        dist.all_reduce(full())


def filled() -> None:
    """The memory for numbers is full, as where the host is far ahead of the device."""
    pool = core.CURRENT.device.numbers._pool
    taken = []
    while (one := pool.one()) is not None:
        taken.append(one)
    dist.all_reduce(full())
    for one in taken:
        pool.give(one)


STEPS: dict[str, tuple[Callable[[], Any], bool]] = {
    "sum": (lambda: dist.all_reduce(full()), True),
    "asynchronous": (lambda: asynchronous(full()), True),
    "half": (lambda: dist.all_reduce(full(dtype=torch.bfloat16)), True),
    "reduce": (lambda: dist.reduce(full(), 0), True),
    "scattered": (lambda: dist.reduce_scatter_tensor(full()[: SIZE // 2].clone(), full()), True),
    "message": (lambda: message(full()), True),
    "batched messages": (lambda: batched(full()), True),
    "integers": (lambda: message(full(dtype=torch.int64)), True),
    "broadcast": (lambda: dist.broadcast(full().t(), 0), True),
    "maximum of a subclass": (
        lambda: dist.all_reduce(full().as_subclass(Named), dist.ReduceOp.MAX), True
    ),
    "small": (lambda: dist.all_reduce(full()[:16].as_subclass(Named)), True),
    "subclass": (lambda: dist.all_reduce(full().as_subclass(Named)), False),
    "list": (lambda: dist.all_reduce_coalesced([full(), full()]), False),
    "scattered list": (lambda: dist.reduce_scatter(full(), [full(), full()]), False),
    "spread": (lambda: dist.all_reduce(full().view(64, -1).t()), False),
    "message of a subclass": (lambda: message(full().as_subclass(Named)), False),
    "seen by a mode": (counted, True),
    FILLS: (filled, False),
}  # fmt: skip
"""What a step does -> (the op, whether its input is read or needs no reading)."""


def main() -> None:
    import pardbg.lab.sim.device as sim

    dist.init_process_group(sim.GROUP)
    model = torch.nn.Linear(4, 1).to(sim.NAME)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer.step()  # step 0 meets the device
    dist.all_reduce(full())
    threading.Thread(target=agents_thread, daemon=True).start()
    optimizer.step()
    steps = {}
    for name, (run, _) in STEPS.items():
        for _ in range(2):  # C++ asks for the first of each kind
            steps.setdefault(name, []).append(core.CURRENT.step)
            run()
            optimizer.step()
    sim.settings.capturing = "captured" in sys.argv
    dist.all_reduce(full())
    sim.settings.capturing = False
    wait_until(lambda: not core.CURRENT.device.poll(), what="all numbers read")
    (model(torch.ones(2, 4).to(sim.NAME)).sum() * float("nan")).backward()
    wait_until(lambda: not core.CURRENT.device.poll(), what="the loss read")
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(steps))


if __name__ == "__main__":
    main()
