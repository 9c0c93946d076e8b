"""Four watched ranks on simulated accelerators; the agent's thread is played by one of ours, as
there is no hub. Prints the release of each case and the device's log since, in ns."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.accelerator as acc
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

import pardbg.lab.sim.device as sim
import pardbg_agent
from pardbg_agent import core
from pardbg_agent.wire import Kind
from tests.accelerator.programs.jobs import ACTION_MS, MICROBATCHES, MS, WIDTH, Stage
from tests.accelerator.programs.spending import spend_in
from tests.distributed.programs.watched import read_rank
from tests.processes import wait_until


def agents_thread() -> None:
    while True:
        for poll in list(core.CURRENT.pollers) if core.CURRENT else ():
            poll()
        time.sleep(0.01)


def together(work: Callable[[], Any]) -> dict[str, Any]:
    """Issue ``work`` on stopped streams, and release them on all ranks at one time."""
    torch.sim.synchronize()
    dist.barrier()
    sim.take_log()
    step, syncs = core.CURRENT.step, sim.counts()["syncs"]
    stop = sim.hold()
    kept = work()
    at, syncs = torch.tensor([sim.native.now()]), sim.counts()["syncs"] - syncs
    dist.all_reduce(at, dist.ReduceOp.MAX)
    sim.release(stop, int(at))
    torch.sim.synchronize()
    del kept
    return {"at": int(at), "step": step, "syncs": syncs, "log": sim.take_log()}


def pipeline(rank: int, size: int) -> dict[str, Any]:
    stage = PipelineStage(Stage().to("sim"), rank, size, torch.device("sim"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.1)
    x = torch.randn(MICROBATCHES, WIDTH, device="sim")

    def step() -> None:
        schedule.step(
            *([x] if rank == 0 else []),
            **({"target": x, "losses": []} if rank == size - 1 else {}),
        )
        optimizer.step()

    step()
    sim.settings.blind = True
    found = together(step)
    sim.settings.blind = False
    return found


class Split(Stage):
    """The same, and its weights' gradients take another 20 ms: they may be computed apart."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = spend_in(self.layer.bias, 0, ACTION_MS / 2, "W")
        y = torch.nn.functional.linear(x, self.layer.weight, bias)
        return spend_in(y, ACTION_MS, ACTION_MS)


def _virtual(rank: int, size: int, schedule_of: Any, module: type[Stage]) -> dict[str, Any]:
    """A step of a schedule with two stages on each rank, in blind mode."""
    numbers = (rank, rank + size)
    modules = [module().to("sim") for _ in numbers]
    stages = [
        PipelineStage(each, number, 2 * size, torch.device("sim"))
        for each, number in zip(modules, numbers, strict=True)
    ]
    schedule = schedule_of(stages, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD([p for each in modules for p in each.parameters()], lr=0.1)
    x = torch.randn(MICROBATCHES, WIDTH, device="sim")

    def step() -> None:
        schedule.step(
            *([x] if rank == 0 else []),
            **({"target": x, "losses": []} if rank == size - 1 else {}),
        )
        optimizer.step()

    step()
    sim.settings.blind = True
    found = together(step)
    sim.settings.blind = False
    return found


def interleaved(rank: int, size: int) -> dict[str, Any]:
    return _virtual(rank, size, ScheduleInterleaved1F1B, Stage)


def zero_bubble(rank: int, size: int) -> dict[str, Any]:
    return _virtual(rank, size, ScheduleInterleavedZeroBubble, Split)


def ops(rank: int, size: int) -> dict[str, Any]:
    """Rank 2's kernels take 30 ms, not 20; then an op of 1 ms: sync, async, functional, a batch."""
    from torch.distributed._functional_collectives import all_reduce

    sim.settings.op_ns = {"aten::mm": 20 * MS}
    sim.settings.comm_default_ns = MS
    sim.settings.speed = 1.5 if rank == 2 else 1.0
    a, b = torch.ones(4, 4, device="sim"), torch.ones(4, device="sim")

    def work() -> Any:
        a @ a
        dist.all_reduce(b)
        a @ a
        works = [dist.all_reduce(b, async_op=True)]
        works[0].wait()
        works.append(all_reduce(b, "sum", dist.group.WORLD))
        pair = [
            dist.P2POp(dist.isend, b, (rank + 1) % size),
            dist.P2POp(dist.irecv, torch.empty(4, device="sim"), (rank - 1) % size),
        ]
        batch = dist.batch_isend_irecv(pair)
        for waited in batch:  # its Future has no event, as NCCL's: only the wait tells of its end
            waited.wait()
        return works, batch

    found = together(work)
    sim.settings.speed, sim.settings.op_ns = 1.0, {}
    return found


def waits(rank: int, size: int) -> dict[str, Any]:
    """Waits for ops of 1 ms: at once; behind 20 ms of compute (rank 2: 30); of a functional op; on
    a stream beside the computing one."""
    from torch.distributed._functional_collectives import all_reduce, wait_tensor

    sim.settings.op_ns, sim.settings.comm_default_ns = {"aten::mm": 20 * MS}, MS
    sim.settings.speed = 1.5 if rank == 2 else 1.0
    a, b, beside = torch.ones(4, 4, device="sim"), torch.ones(4, device="sim"), sim.own_stream()
    weight = torch.ones(4, device="sim", requires_grad=True)
    weight.sum().backward()  # a phase, on its stream
    torch.optim.SGD([weight]).step()

    def work() -> Any:
        a @ a
        dist.all_reduce(b, async_op=True).wait()
        hidden = dist.all_reduce(b, async_op=True)
        a @ a
        hidden.wait()
        hidden.wait()  # once is enough
        wait_tensor(all_reduce(b, "sum", dist.group.WORLD))
        other = dist.all_reduce(b, async_op=True)
        with sim.stream(beside):
            other.wait()
        return hidden, other

    found = together(work)
    sim.settings.speed, sim.settings.op_ns = 1.0, {}
    late = dist.all_reduce(b, async_op=True)
    torch.sim.synchronize()
    wait_until(lambda: not core.CURRENT.ops.num_open, what="its end")
    late.wait()
    return found


def sharded(rank: int, size: int) -> dict[str, Any]:
    """A step of FSDP2: it issues ops on streams of its own, and gets no Work."""
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(3))).to("sim")
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 32, device="sim")

    def step() -> None:
        with pardbg_agent.span("all of it"):
            model(x).sum().backward()
        optimizer.step()

    step()
    return together(step)


def units(rank: int, size: int) -> dict[str, Any]:
    """The same, with products that take 1 ms."""
    sim.settings.op_ns = {"aten::addmm": MS, "aten::mm": MS}
    found = sharded(rank, size)
    sim.settings.op_ns = {}
    return found


def refused(rank: int, size: int) -> dict[str, Any]:
    """A batch's end fails: gloo, which the host's tensors have, knows no batches."""
    group, b = dist.group.WORLD, torch.ones(4, device="sim")
    torch.sim.synchronize()
    wait_until(lambda: not core.CURRENT.ops.num_open, what="ends of the ops before")
    group._start_coalescing(b.device)
    dist.all_reduce(b, async_op=True)
    with contextlib.suppress(RuntimeError):
        group._end_coalescing(torch.device("cpu"))
    found = {"open": core.CURRENT.ops.num_open}
    group._end_coalescing(b.device)
    return found


def unwaited(rank: int, size: int) -> dict[str, Any]:
    """A batch that nobody waits for; and one at level summary, where its Work is polled."""
    found, b = {}, torch.ones(4, device="sim")
    for name, level in (("full", 2), ("summary", 1)):
        torch.sim.synchronize()
        wait_until(lambda: not core.CURRENT.ops.num_open, what="ends of the ops before")
        core.CURRENT.set_level(level)
        sim.settings.comm_default_ns = 1500 * MS  # longer than a busy machine takes to look
        batch = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, b, (rank + 1) % size),
            dist.P2POp(dist.irecv, torch.empty(4, device="sim"), (rank - 1) % size),
        ])  # fmt: skip
        for poll in list(core.CURRENT.pollers):
            poll()
        found[f"{name}_before"] = core.CURRENT.ops.num_open
        torch.sim.synchronize()
        del batch
        wait_until(lambda: not core.CURRENT.ops.num_open, what="ends of the batch")
    torch.sim.synchronize()
    dist.all_reduce(b, async_op=True)
    # A Work that is polled is held until then, and the op's memory with it.
    own = core.CURRENT.device.poll
    found["summary_polled"] = any(poll() for poll in core.CURRENT.pollers if poll != own)
    found["summary_open"] = core.CURRENT.ops.num_open
    torch.sim.synchronize()
    wait_until(lambda: not core.CURRENT.ops.num_open, what="end of the op")
    core.CURRENT.set_level(2)
    sim.settings.comm_default_ns = MS
    return found


def captured(rank: int, size: int) -> dict[str, Any]:
    """A graph of two kernels of 2 ms and an op, replayed twice."""
    sim.settings.op_ns = {"aten::mm": 2 * MS}
    a, b, graph = torch.ones(4, 4, device="sim"), torch.ones(4, device="sim"), acc.Graph()
    left_out = core.CURRENT.device.times.num_left_out
    graph.capture_begin()
    a @ a
    dist.all_reduce(b)
    a @ a
    graph.capture_end()

    def work() -> None:
        for _ in range(2):
            graph.replay()

    found = together(work)
    sim.settings.op_ns = {}
    return found | {"left_out": core.CURRENT.device.times.num_left_out - left_out}


def arrivals() -> int:
    """Ops whose arrival has a record of its own, before their end."""
    return len(read_rank(Path(core.CURRENT.ring.path)).of(Kind.DEVICE_BEGIN))


def hang(rank: int, size: int) -> dict[str, Any]:
    """Rank 1's device stops before an op, for as long as the others' agents take to notice."""
    torch.sim.synchronize()
    dist.barrier()
    stop, before = sim.hold() if rank == 1 else None, arrivals()
    step = core.CURRENT.step
    dist.all_reduce(torch.ones(4, device="sim"))
    if rank != 1:
        wait_until(lambda: arrivals() > before, what="arrival")
    dist.all_reduce(torch.zeros(1))  # all have looked
    if stop is not None:
        time.sleep(0.1)
        sim.release(stop, sim.native.now())
    torch.sim.synchronize()
    return {"step": step}


CASES = (
    pipeline, interleaved, zero_bubble, ops, waits, sharded, units, refused, unwaited, captured,
    hang,
)  # fmt: skip


def main() -> None:
    warnings.filterwarnings("ignore")
    dist.init_process_group(sim.GROUP)
    rank, size = dist.get_rank(), dist.get_world_size()
    sim.settings.comm_default_ns = 0
    dist.all_reduce(torch.ones(1, device="sim"))
    threading.Thread(target=agents_thread, daemon=True).start()
    found = {case.__name__: case(rank, size) for case in CASES}
    device = core.CURRENT.device
    wait_until(lambda: not device.poll(), what="all times read")
    found |= {"left_out": device.times.num_left_out, "way": type(device).__name__}
    sim.hold()  # for ever
    dist.all_reduce(torch.ones(1, device="sim"))
    open_ops, begun = core.CURRENT.ops, time.monotonic()
    pardbg_agent.detach()
    found |= {"detached_s": time.monotonic() - begun, "open": open_ops.num_open}
    found["live_events"] = sim.counts()["live_events"]
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
