"""Trios of ranks that go through rows of the table: ``… waits.program FOLDER NAME …``. The rank
that sleeps says so with FOLDER/NAME.RANK, and sleeps until FOLDER/NAME is there. Beside an older
torch a row that raises is noted as FOLDER/lacks.NAME, with why, and the trio goes on."""

from __future__ import annotations

import datetime
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import fsdp, optim, tensor

from pardbg_agent.hooks.comm.groups import PROCESS
from tests.diagnosis.waits.cells import ROWS, Trio

LIMIT_S = 300
ONCE = fsdp, optim, tensor
"""What rows use: imported before ranks are forked."""

WHOLE = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""This torch has every row: one that raises fails."""


@contextmanager
def lacking(folder: Path, name: str) -> Iterator[None]:
    """Note a row that this torch cannot run: an op that its gloo has not, an argument."""
    try:
        yield
    except Exception as error:
        if WHOLE:
            raise
        (folder / f"lacks.{name}").write_text(f"{type(error).__name__}: {error}")
        (folder / name).touch()


def planted(folder: Path, name: str, rank: int) -> None:
    (folder / f"{name}.{rank}").touch()
    while not (folder / name).exists():
        time.sleep(0.05)


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=LIMIT_S))
    assert PROCESS.source == os.environ.get("PARDBG_HOOKS", ""), PROCESS.source
    groups = [dist.new_group(list(range(at, at + 3))) for at in range(0, size, 3)]
    mine, first = groups[rank // 3], rank // 3 * 3
    for number, name in enumerate(names[rank // 3 :: size // 3]):
        trio = Trio(mine, (first, first + 1, first + 2), rank - first, (1 + number) % 3)
        with lacking(folder, name):
            steps = ROWS[name](trio)
            next(steps)
            if trio.sleeps:
                planted(folder, name, rank)
            next(steps, None)
        dist.barrier(group=mine)
    planted(folder, "end", rank)  # no barrier of all: nobody is to wait for other trios
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
