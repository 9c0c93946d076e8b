"""Any pipeline schedule, from a CSV: a row a rank, a cell an action (``--file``, or ZB-H1).

    rank 0  F0 F1 F2 F3 .. .. .. I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7
    rank 1     F0 F1 F2 .. .. I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7
    rank 2        F0 F1 .. I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W5 W6 W7
    rank 3           F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7

torch has no class for this one. It is 1F1B with each backward cut in two, and W put off by as many
microbatches as the rank's number: later ranks, which begin last, work while the first ones drain.
No rank holds more than the p activations that rank 0 of 1F1B holds; with F, I and W of one length
the bubble is (p-1)/(3·m+p-1) = 3/27 = 11 %, where 1F1B has 27 %. How to come from one to the other
by hand: docs/schedules.md.

torch reads the file (``_load_csv``), puts the sends and receives between, and each rank walks its
row. The stages lie on the ranks that the file says.

    torchrun --nproc-per-node 4 -m pardbg.lab.recipes.csv_table --file S.csv
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace

from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from pardbg.lab.recipes import watched
from pardbg.lab.recipes.catalogue.tables import read, zb_h1
from pardbg.lab.recipes.launch import Options, World, main
from pardbg.lab.recipes.model import loss
from pardbg.lab.recipes.pipeline import train_pipeline


class FromCsv(_PipelineScheduleRuntime):
    """torch's runtime; the name is what the screen shows."""


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


if __name__ == "__main__":
    main("csv", train)
