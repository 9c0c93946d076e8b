"""Parameter server without a common step: workers push when ready, without waiting for others."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from pardbg.lab.recipes import watched
from pardbg.lab.recipes.data import Text
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import gpt, loss
from pardbg.lab.recipes.ps import SERVER, gradients, set_gradients

SLOW = 3
"""Factor by which the last worker is slower."""


def train(world: World, options: Options) -> None:
    if world.rank == SERVER:
        serve(world, options, options.own["staleness"])
    else:
        work(world, options)


def serve(world: World, options: Options, bound: int) -> None:
    model = gpt(options.seed).to(world.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    count = sum(p.numel() for p in model.parameters())
    waiting = list(range(1, world.size))  # workers that want weights
    away: dict[int, int] = {}  # worker -> version of the weights it computes on
    pushed: dict[int, torch.Tensor] = {}  # worker -> its push, not applied yet
    version = given = 0

    while version < options.steps:
        while waiting and given < options.steps:
            if not in_time(version, [*away.values(), version], bound):
                break
            worker = waiting.pop(0)
            give(model, worker, version, given)
            away[worker] = version
            given += 1
        with watched.span("push"):
            # From whoever is first. gloo can do that; NCCL has no such receive, so the recipe runs
            # on gloo everywhere.
            push = torch.empty(count + 2, device=world.device)
            pushed[dist.recv(push)] = push
        for worker in sorted(pushed, key=away.__getitem__):  # the oldest first: it always may
            others = (v for w, v in away.items() if w != worker)
            if in_time(version + 1, others, bound):
                push = pushed.pop(worker)
                computed_on, loss_there = push[count:].tolist()
                set_gradients(model, push[:count])
                watched.log(staleness=version - computed_on)
                optimizer.step()
                world.report(version, loss_there)
                version += 1
                del away[worker]
                waiting.append(worker)
    for worker in waiting:
        give(model, worker, version, -1)


def in_time(version: int, away: Iterable[int], bound: int) -> bool:
    """Return whether all workers that are computing can still push within the bound: if the oldest
    comes back first, then the next, each finds one update more."""
    return all(version + i - pulled <= bound for i, pulled in enumerate(sorted(away)))


def give(model: torch.nn.Module, worker: int, version: int, batch: int) -> None:
    """Send weights, their version, and the number of the batch to compute on; -1: the training is
    over. Both numbers are float32 beside the weights, which is exact up to 16 million."""
    weights = parameters_to_vector(model.parameters()).detach()
    with watched.span("pull"):
        dist.send(torch.cat([weights, weights.new_tensor([version, batch])]), worker)


def work(world: World, options: Options) -> None:
    slow = SLOW if world.rank == world.size - 1 and world.size > 2 else 1
    model = gpt(options.seed, options.pace_ms * slow).to(world.device)
    text = Text(options.seed, world.device)
    count = sum(p.numel() for p in model.parameters())
    pull = torch.empty(count + 2, device=world.device)

    while True:
        with watched.span("pull"):
            dist.recv(pull, SERVER)
        version, batch = (int(number) for number in pull[-2:])
        if batch < 0:
            return
        vector_to_parameters(pull[:count], model.parameters())
        tokens, targets = text.batch(batch)
        model.zero_grad()
        error = loss(model(tokens), targets)
        error.backward()
        with watched.span("push"):
            what = error.new_tensor([version, error.item()])
            dist.send(torch.cat([gradients(model), what]), SERVER)
        watched.step()  # this worker's own count: the slow one gets fewer


if __name__ == "__main__":
    main("ps-async", train)
