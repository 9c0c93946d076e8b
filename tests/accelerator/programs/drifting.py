"""Two replicas on the simulated accelerator, of which one drifts, and its loss becomes NaN."""

from __future__ import annotations

import json
import threading

import torch
import torch.distributed as dist
from torch import nn

from pardbg_agent import core
from tests.accelerator.programs.losses import WIDTH, data, ddp
from tests.accelerator.programs.watched_jobs import agents_thread
from tests.processes import wait_until

DRIFTS, BREAKS, STEPS = 4, 12, 14


def main() -> None:
    import pardbg.lab.sim.device as sim

    dist.init_process_group(sim.GROUP)
    threading.Thread(target=agents_thread, daemon=True).start()
    rank, model = dist.get_rank(), ddp(sim.NAME)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        if step == 2:  # DDP has arranged its buckets anew, which waits
            syncs = sim.counts()["syncs"]
        optimizer.zero_grad()
        x = data(100 * step + rank, sim.NAME)
        loss = nn.functional.mse_loss(model(x), x)
        if rank and step == BREAKS:
            loss = loss * torch.full((), float("nan"), device=sim.NAME)
        loss.backward()
        optimizer.step()
        if rank and step == DRIFTS:
            with torch.no_grad():
                next(model.parameters())[0, WIDTH - 1] += 1
        losses.append(loss.detach())
    syncs = sim.counts()["syncs"] - syncs
    halves, x = [], data(rank, sim.NAME).bfloat16()  # a step of two microbatches
    other = ddp(sim.NAME).bfloat16()
    for _ in range(2):
        halves.append(nn.functional.mse_loss(other(x), x) / 2)
        halves[-1].backward()
    optimizer.step()
    device = core.CURRENT.device
    wait_until(lambda: not device.poll(), what="all numbers read")
    dist.barrier()
    dist.destroy_process_group()
    told = {"losses": [*map(float, losses)], "halves": [*map(float, halves)], "syncs": syncs}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
