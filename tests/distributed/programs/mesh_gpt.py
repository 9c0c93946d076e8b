"""A small GPT on a mesh of any size: data parallel × pipeline × tensor parallel, as ``3d`` is.

pardbg rehearse --world-size 1024 -- python tests/distributed/programs/mesh_gpt.py --pp 8 --tp 4
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from pardbg.recipes.model import gpt, loss, stage
from pardbg.recipes.pipeline import run_schedule
from pardbg.recipes.shape import CONTEXT, VOCABULARY
from pardbg.recipes.tp import parallelize


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pp", type=int, default=2)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    given = parser.parse_args()

    dist.init_process_group("gloo")
    world = int(os.environ["WORLD_SIZE"])
    shape = (world // (given.pp * given.tp), given.pp, given.tp)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "pp", "tp"))
    index, first, last = mesh["pp"].get_local_rank(), False, False
    first, last = index == 0, index == given.pp - 1
    part = stage(gpt(0), index, given.pp)
    if given.tp > 1:
        parallelize(part, mesh["tp"])
    pipe = PipelineStage(part, index, given.pp, torch.device("cpu"), group=mesh["pp"].get_group())
    schedule = Schedule1F1B(pipe, given.microbatches, loss_fn=loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=1e-3)
    tokens = torch.randint(VOCABULARY, (given.microbatches, CONTEXT))
    for _ in range(given.steps):
        optimizer.zero_grad()
        run_schedule(schedule, tokens if first else None, tokens if last else None)
        for parameter in part.parameters():
            grad = parameter.grad
            if grad is not None:
                local = grad.to_local() if hasattr(grad, "to_local") else grad
                dist.all_reduce(local, group=mesh["dp"].get_group())
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
