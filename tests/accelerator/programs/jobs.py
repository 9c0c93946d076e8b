"""Four ranks on simulated accelerators: a pipeline, a slow device, one that stops, a full one.

Each case stops all streams, issues everything (the hosts run ahead) and releases them at one time,
so that its figures follow from the stated costs alone.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import pardbg.lab.sim.device as sim
from tests.accelerator.programs.spending import spend_in
from tests.processes import wait_until

MS = 1_000_000
WIDTH, MICROBATCHES, ACTION_MS = 8, 8, 40.0


class Stage(torch.nn.Module):
    """A layer whose forward and backward take 40 ms each."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return spend_in(self.layer(x), ACTION_MS, ACTION_MS)


def together(work: Callable[[], Any]) -> list[list[Any]]:
    """What ``work`` launches on all ranks' stopped streams, released at one time: (name, stream,
    arrival, begin, end), in ms from then."""
    torch.sim.synchronize()
    sim.take_log()
    stop = sim.hold()
    kept = work()
    at = torch.tensor([sim.native.now()])
    dist.all_reduce(at, dist.ReduceOp.MAX)  # on the host
    sim.release(stop, int(at))
    torch.sim.synchronize()
    del kept
    start = int(at)
    return [[e[0], e[1], *((t - start) / MS for t in e[3:])] for e in sim.take_log()]


def pipeline(rank: int, size: int) -> Any:
    """1F1B in blind mode: the hosts wait for no peer's data. Transfers are free."""
    stage = PipelineStage(Stage().to("sim"), rank, size, torch.device("sim"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    x = torch.randn(MICROBATCHES, WIDTH, device="sim")

    def step() -> Any:
        return schedule.step(
            *([x] if rank == 0 else []),
            **({"target": x, "losses": []} if rank == size - 1 else {}),
        )

    step()  # the first one sends shapes as data
    sim.settings.comm_default_ns = 0
    sim.settings.blind = True
    before = sim.counts()
    log = together(step)
    after = sim.counts()
    sim.settings.blind = False
    waited = after["data_waits"] - before["data_waits"]
    return [entry for entry in log if entry[0] in ("F", "B")], waited


def straggler(rank: int, size: int) -> Any:
    """A product of 20 ms, on rank 2 of 30, and an all_reduce of 1 ms: sync, then async."""
    sim.settings.op_ns = {"aten::mm": 20 * MS}
    sim.settings.comm_default_ns = MS
    sim.settings.speed = 1.5 if rank == 2 else 1.0
    a, gradient = torch.ones(4, 4, device="sim"), torch.ones(4, device="sim")
    works = []

    def work() -> Any:
        for is_async in (False, True):
            a @ a
            works.append(dist.all_reduce(gradient, async_op=is_async))
        return works[-1].wait()

    log = together(work)
    sim.settings.speed = 1.0
    return [entry for entry in log if entry[0] == "all_reduce"], [w is not None for w in works]


def hang(rank: int, size: int) -> Any:
    """Rank 2's device stops before the fourth of six ops: who has arrived, what has ended."""
    a, gradient = torch.ones(4, 4, device="sim"), torch.ones(4, device="sim")
    arrivals, ends = ([torch.Event("sim", enable_timing=True) for _ in range(6)] for _ in range(2))
    torch.sim.synchronize()
    dist.barrier()
    stop = None
    for i in range(6):
        a @ a
        if rank == 2 and i == 3:
            stop = sim.hold()
        arrivals[i].record()
        dist.all_reduce(gradient)
        ends[i].record()
    expected = 3 if rank == 2 else 4

    def seen(events: list[Any]) -> int:
        return sum(event.query() for event in events)

    wait_until(lambda: (seen(arrivals), seen(ends)) == (expected, 3), what="the hang")
    dist.all_reduce(torch.zeros(1))  # all have looked
    if stop is not None:
        sim.release(stop, sim.native.now())
    torch.sim.synchronize()
    return expected, seen(arrivals), seen(ends)


def out_of_memory(rank: int, size: int) -> Any:
    """Rank 1's device is full; the others' are not."""
    sim.settings.memory = torch.accelerator.memory_reserved() + 1000 if rank == 1 else 0
    try:
        torch.empty(4 << 20, device="sim")
        return True
    except torch.OutOfMemoryError:
        return False
    finally:
        sim.settings.memory = 0


def transfers(rank: int, size: int) -> Any:
    """50 tensors of 1 MiB around the ring, which nobody touches again: MiB held in the end."""
    before = torch.sim.memory_allocated()
    for _ in range(50):
        out, got = (torch.empty(1 << 18, device="sim") for _ in range(2))
        works = [dist.isend(out, (rank + 1) % size), dist.irecv(got, (rank - 1) % size)]
        for work in works:
            work.wait()
        del out, got, works, work
        torch.sim.synchronize()
        dist.barrier()
    return (torch.sim.memory_allocated() - before) >> 20


def main() -> None:
    warnings.filterwarnings("ignore")
    dist.init_process_group(sim.GROUP)
    rank, size = dist.get_rank(), dist.get_world_size()
    cases = (pipeline, straggler, hang, transfers, out_of_memory)
    print(json.dumps({case.__name__: case(rank, size) for case in cases}), flush=True)
    if rank == 0:  # its device never comes to this op, and it leaves with it
        sim.hold()
    dist.all_reduce(torch.ones(4, device="sim"))


if __name__ == "__main__":
    main()
