"""Ranks that disagree, one way after the other, in one job: they wait in broadcasts until the file
GO is there, then train as DDP should, sum another dtype, drift apart, wait for the file END, and
at last bring another size to an all_gather, at which gloo ends a process.

    python -m tests.distributed.programs.forked_ranks 3 \\
        tests.distributed.programs.disagreeing fault:diverge
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from pardbg.lab.recipes.catalogue import RECIPES
from pardbg.lab.recipes.launch import Options, World, main

GO, END, RANK = "DISAGREEING_GO", "DISAGREEING_END", 2
PARTS = {"fault:mismatch-dtype": (6, 5), "fault:diverge": (6, 2)}
"""(steps, the one with the fault). What drifted stays so: ranks of another node, whose sums come
late, compare those of a later step."""


def train(world: World, options: Options) -> None:
    wait(GO)
    for name, (steps, fault) in PARTS.items():
        recipe = RECIPES[name]
        own = recipe.read([f"--fault-rank={RANK}", f"--fault-step={fault}"])
        its = Options(steps, options.seed, 0.0, options.lr, {**own, "steps": steps})
        recipe.load()(world, its)
    wait(END)
    mine = torch.zeros(3 if world.rank == RANK else 4)
    dist.all_gather([torch.empty_like(mine) for _ in range(world.size)], mine)


def wait(name: str) -> None:
    """Until the file of this variable is there, as rank 0 sees it."""
    go = torch.zeros(1, dtype=torch.int64)
    while not go.item():
        go[0] = Path(os.environ[name]).exists()
        dist.broadcast(go, 0)
        time.sleep(0.002)


if __name__ == "__main__":
    main("fault:diverge", train)
