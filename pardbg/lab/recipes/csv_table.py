"""Any pipeline schedule from a CSV: a row per rank, a cell per action (``--file``, or ZB-H1)."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from pardbg.lab.recipes import watched
from pardbg.lab.recipes.catalogue.tables import read, zb_h1
from pardbg.lab.recipes.launch import Options, World, main_of
from pardbg.lab.recipes.model import loss
from pardbg.lab.recipes.pipeline import train_pipeline


class FromCsv(_PipelineScheduleRuntime):
    """torch's schedule runtime; the class name is shown on the screen."""


def train(world: World, options: Options) -> None:
    path = options.own["file"]
    table = read(path) if path else zb_h1(world.size)
    if options.own["predicted"]:
        watched.note("predicted", options.own["predicted"])

    def make_schedule(stages: list[PipelineStage], microbatches: int) -> FromCsv:
        schedule = FromCsv([*stages], microbatches, loss_fn=loss)
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
            file.write("\n".join(",".join(row) for row in table.rows))
            file.flush()
            schedule._load_csv(path or file.name)
        return schedule

    def place(rank: int, size: int) -> Sequence[int]:
        return table.stages(rank)

    own = {**options.own, "microbatches": table.num_microbatches}
    train_pipeline(world, replace(options, own=own), make_schedule, place)


RECIPES: Final = {"csv": train}

if __name__ == "__main__":
    main_of(RECIPES)
