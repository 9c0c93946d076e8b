"""Pipeline parallel: the model is cut into stages, and microbatches flow through the ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

from pardbg.lab.recipes.data import WHOLE, batches
from pardbg.lab.recipes.launch import Options, Train, World, main_of
from pardbg.lab.recipes.model import gpt, loss, stage
from pardbg.lab.recipes.shape import MICROBATCHES

MakeSchedule = Callable[[list[PipelineStage], int], Any]
"""(this rank's stages, number of microbatches) -> a schedule of torch.distributed.pipelining."""
Place = Callable[[int, int], Sequence[int]]
"""(rank, number of ranks) -> the stages of that rank."""
Cut = Callable[[nn.Sequential, int, int], nn.Module]
"""(model, stage, number of stages) -> the module of that stage."""


def one_each(rank: int, size: int) -> Sequence[int]:
    """Return one stage per rank: 0, 1, 2, 3."""
    return [rank]


def loop(rank: int, size: int) -> Sequence[int]:
    """Return stages 0 and 4, 1 and 5, 2 and 6, 3 and 7: a microbatch goes round the ranks twice."""
    return [rank, size + rank]


def v_shape(rank: int, size: int) -> Sequence[int]:
    """Return stages 0 and 7, 1 and 6, 2 and 5, 3 and 4: down the ranks and back up."""
    return [rank, 2 * size - 1 - rank]


def by(schedule: str, place: Place = one_each) -> Train:
    """Return the ``train`` function of a recipe with one of torch's schedules."""
    return partial(train_pipeline, make_schedule=made_by(schedule, place), place=place)


def made_by(schedule: str, place: Place = one_each) -> MakeSchedule:
    """Return a maker of one of torch's schedules: those of one stage per rank take the stage,
    others a list. Looked up when training begins, as not every torch has all of them."""

    def make(stages: list[PipelineStage], microbatches: int) -> Any:
        kind = getattr(pipelining, schedule)
        return kind(stages[0] if place is one_each else stages, microbatches, loss_fn=loss)

    return make


def train_pipeline(
    world: World,
    options: Options,
    make_schedule: MakeSchedule,
    place: Place = one_each,
    cut: Cut = stage,
) -> None:
    """Train with this rank's stages by ``place``, cut from the model by ``cut``."""
    mine = place(world.rank, world.size)
    num_stages = sum(len(place(rank, world.size)) for rank in range(world.size))
    first, last = 0 in mine, num_stages - 1 in mine

    # Every rank makes the whole model from the same seed and keeps its part. A model that fits on
    # no single rank would be made on the meta device, and its parts filled where they live.
    whole = gpt(options.seed, options.pace_ms)
    parts = [cut(whole, index, num_stages).to(world.device) for index in mine]
    stages = [
        PipelineStage(part, index, num_stages, world.device)
        for part, index in zip(parts, mine, strict=True)
    ]
    schedule = make_schedule(stages, options.own.get("microbatches", MICROBATCHES))
    # A rank's optimizer knows the rank's own parameters, nothing else: no gradient is averaged
    # with anybody's.
    optimizer = torch.optim.AdamW([p for part in parts for p in part.parameters()], lr=options.lr)

    for step, tokens, targets in batches(world, options, WHOLE):
        optimizer.zero_grad()
        losses = run_schedule(schedule, tokens if first else None, targets if last else None)
        optimizer.step()
        if last:
            world.report(step, torch.stack(losses).mean().item())


def run_schedule(schedule: Any, tokens: Tensor | None, targets: Tensor | None) -> list[Tensor]:
    """Run all forwards and backwards of this rank in the schedule's order, with receives and sends.

    Only the first stage needs the tokens, and only the last one, which has the targets, can compute
    losses, one per microbatch. The microbatches' gradients add up, divided by their number, so the
    step is that of the whole batch.
    """
    losses: list[Tensor] = []
    schedule.step(
        *([] if tokens is None else [tokens]),
        target=targets,
        losses=None if targets is None else losses,
    )
    return losses


RECIPES: Final[Mapping[str, Train]] = {
    "gpipe": by("ScheduleGPipe"),
    "1f1b": by("Schedule1F1B"),
    "interleaved": by("ScheduleInterleaved1F1B", loop),
    "looped-bfs": by("ScheduleLoopedBFS", loop),
    "zb": by("ScheduleInterleavedZeroBubble", loop),
    "zbv": by("ScheduleZBVZeroBubble", v_shape),
    "dualpipev": by("ScheduleDualPipeV", v_shape),
}

if __name__ == "__main__":
    main_of(RECIPES)
