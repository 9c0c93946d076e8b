"""Two replicas on the simulated accelerator: a gradient of rank 1 becomes NaN; then messages."""

from __future__ import annotations

import json
import threading

import torch
import torch.distributed as dist

from pardbg_agent import core
from tests.accelerator.programs.losses import data, ddp
from tests.accelerator.programs.watched_jobs import agents_thread
from tests.processes import wait_until

BREAKS, STEPS = 6, 8
SIZE = 5_000
"""Elements of a sum, of which the last 20 are infinite; fewer would not always be seen."""


def main() -> None:
    import pardbg.lab.sim.device as sim

    dist.init_process_group(sim.GROUP)
    threading.Thread(target=agents_thread, daemon=True).start()
    rank, model = dist.get_rank(), ddp(sim.NAME)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    breaks = False
    middle = model.module[3].weight
    middle.register_hook(lambda grad: grad * float("nan") if breaks else grad)
    for step in range(STEPS):
        if step == 2:  # DDP has arranged its buckets anew, which waits
            syncs = sim.counts()["syncs"]
        breaks = rank == 1 and step == BREAKS
        optimizer.zero_grad()
        model(data(100 * step + rank, sim.NAME)).square().mean().backward()
        dist.all_reduce(torch.zeros(SIZE, device=sim.NAME))  # the step's last sum; DDP's is before
        optimizer.step()
    syncs = sim.counts()["syncs"] - syncs
    message = torch.zeros(SIZE, device=sim.NAME)
    message[-20:] = float("inf")
    for _ in range(2):  # C++ asks for the first of each kind
        dist.send(message, 1) if rank == 0 else dist.recv(message, 0)
        dist.all_reduce(message, dist.ReduceOp.MAX)
    least = torch.full((SIZE,), torch.finfo(torch.float32).min, device=sim.NAME)
    for _ in range(2):  # as a mask has them: their sum overflows
        dist.send(least, 1) if rank == 0 else dist.recv(least, 0)
    wait_until(lambda: not core.CURRENT.device.poll(), what="all numbers read")
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps({"syncs": syncs}))


if __name__ == "__main__":
    main()
