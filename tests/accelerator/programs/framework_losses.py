"""A made-up framework's schedule on the simulated accelerator, and Megatron's way to return losses:
a sum and its tokens for each microbatch."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import torch
import torch.distributed as dist

from pardbg_agent import core
from pardbg_agent.hooks.frameworks import megatron, seam
from pardbg_agent.hooks.training import pipeline_actions
from tests.accelerator.programs.watched_jobs import agents_thread
from tests.processes import wait_until


def main() -> None:
    import pardbg.lab.sim.device as sim

    dist.init_process_group(sim.GROUP)
    threading.Thread(target=agents_thread, daemon=True).start()
    numbers = torch.tensor([3.0, 5.0, 8.0, 2.0], device=sim.NAME)
    dist.all_reduce(numbers)  # by one rank
    c = core.CURRENT
    made = pipeline_actions.of(c)
    made.of_run, made.run_step = seam.Run(0, 1), 7
    syncs = sim.counts()["syncs"]
    for loss in (numbers[0], numbers[1]):
        seam.keep_loss(made, loss)
    numbers[0] = 0  # after the schedule had it
    seam.report_mean(c, made)
    made.of_run = SimpleNamespace(of_framework=[{"lm": numbers[2:]}, {"lm": (numbers[1], 3)}])
    megatron._log_loss(c, made)
    syncs = sim.counts()["syncs"] - syncs
    wait_until(lambda: not c.device.poll(), what="all numbers read")
    dist.destroy_process_group()
    print(json.dumps({"syncs": syncs}))


if __name__ == "__main__":
    main()
