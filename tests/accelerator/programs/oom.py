"""Ranks on simulated accelerators train until one of them, or all, run out of memory, for a cause
that a seed draws: ``oom SEED``. Rank 0 prints what is true first."""

from __future__ import annotations

import contextlib
import json
import random
import sys
import warnings
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import pardbg.lab.sim.device as sim
from pardbg_agent.hooks.memory import usage
from tests.processes import wait_until

KIB = 1 << 10
CAUSES = (
    "request", "fragmentation", "others", "growth", "imbalance", "activations", "optimizer",
    "caught",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What a seed draws."""

    cause: str
    rank: int
    """Rank that it happens on; activations and optimizer: on all."""
    step: int
    width: int
    observed: bool
    """The allocator reports failed requests; else only the error does."""

    @property
    def on_all(self) -> bool:
        return self.cause in ("activations", "optimizer")

    @property
    def parameters_bytes(self) -> int:
        return 4 * 4 * self.width * self.width

    def here(self, rank: int, step: int) -> bool:
        return step == self.step and rank == self.rank


def drawn(seed: int, ranks: int) -> Case:
    draw = random.Random(seed)
    cause = CAUSES[seed % len(CAUSES)]
    step = 40 if cause == "growth" else draw.randrange(1, 6)
    step = 0 if cause == "optimizer" else step
    observed = cause == "caught" or draw.random() < 0.5
    return Case(cause, draw.randrange(ranks), step, draw.choice((128, 192, 256)), observed)


def train(case: Case, rank: int) -> None:
    torch.manual_seed(1)
    layers = [nn.Linear(case.width, case.width, bias=False) for _ in range(4)]
    model = DDP(nn.Sequential(*layers).to("sim"))
    adam = case.cause == "optimizer"
    optimizer: Any = (torch.optim.Adam if adam else torch.optim.SGD)(model.parameters(), lr=1e-3)
    kept: list[torch.Tensor] = []
    for step in range(case.step + 200):
        if step == case.step:
            limit(case, rank)
        rows = batch(case, rank, step)
        if case.cause == "growth" and rank == case.rank:
            kept.append(torch.empty(case.parameters_bytes // 8, dtype=torch.uint8, device="sim"))
        try:
            loss = model(torch.ones(rows, case.width, device="sim")).sum()
        except torch.OutOfMemoryError:
            if case.cause != "caught":
                raise
            loss = model(torch.ones(4, case.width, device="sim")).sum()
        loss.backward()
        failing(case, rank, step)
        if case.cause == "caught" and step > case.step + 5:
            break
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def batch(case: Case, rank: int, step: int) -> int:
    """Rows of the batch: too many for all, or for one rank, from the case's step on."""
    large = 16 * case.width
    if case.cause == "activations" and step == case.step:
        return large
    return large if case.cause in ("imbalance", "caught") and case.here(rank, step) else 4


def limit(case: Case, rank: int) -> None:
    """Make the device as small as the case wants it."""
    if case.cause == "optimizer":  # the first step, where some ranks may still hold what DDP sent
        own = 2 * case.parameters_bytes  # with DDP's buckets
        wait_until(lambda: torch.accelerator.memory_allocated() <= own)
    torch.accelerator.empty_cache()
    reserved, parameters = torch.accelerator.memory_reserved(), case.parameters_bytes
    only = case.cause in ("activations", "optimizer", "imbalance", "growth")
    if case.cause == "optimizer":
        sim.settings.memory = torch.accelerator.memory_allocated() + int(2.6 * parameters)
    elif only or rank == case.rank:
        sim.settings.memory = reserved + 4 * parameters
    if case.cause == "others" and rank == case.rank:
        sim.settings.memory = reserved + 64 * parameters
        sim.settings.foreign = 64 * parameters - 64 * KIB


def failing(case: Case, rank: int, step: int) -> None:
    """Ask for what there is not, on the case's rank in its step."""
    if not case.here(rank, step):
        return
    if case.cause == "request":
        torch.empty(2 * sim.settings.memory, dtype=torch.uint8, device="sim")
    elif case.cause == "others":
        unused = torch.accelerator.memory_reserved() - torch.accelerator.memory_allocated()
        torch.empty(unused + 128 * KIB, dtype=torch.uint8, device="sim")
    elif case.cause == "fragmentation":
        size = case.parameters_bytes // 2
        blocks: list[Any] = []
        try:
            while True:
                blocks.append(torch.empty(size, dtype=torch.uint8, device="sim"))
        except torch.OutOfMemoryError:
            blocks[::2] = [None] * len(blocks[::2])
        torch.empty(2 * size, dtype=torch.uint8, device="sim")


def wait_for_the_others(rank: int, size: int) -> None:
    """A rank that leaves takes its connections along, and those that are slower fail by that."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"failed {rank}", "yes")
    with contextlib.suppress(dist.DistError):  # rank 0, who keeps the store, may leave first
        store.wait([f"failed {each}" for each in range(size)], timedelta(seconds=60))


def main() -> None:
    warnings.filterwarnings("ignore")
    usage.TOTAL_EVERY_NS = 0  # type: ignore[misc]
    dist.init_process_group(sim.GROUP)
    rank, size = dist.get_rank(), dist.get_world_size()
    case = drawn(int(sys.argv[1]), size)
    if not case.observed:
        del torch.sim.attach_out_of_memory_observer  # type: ignore[attr-defined]
    print(json.dumps(asdict(case)), flush=True)
    try:
        train(case, rank)
    except torch.OutOfMemoryError:
        if case.on_all:
            wait_for_the_others(rank, size)
        raise


if __name__ == "__main__":
    main()
