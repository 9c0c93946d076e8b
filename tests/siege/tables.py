"""Schedules as CSV files with odd cells: each is checked, drawn and predicted, or refused."""

from __future__ import annotations

import random
from functools import partial
from typing import Final

from pardbg.lab.schedules.compare import Durations
from pardbg.lab.schedules.lint import lint
from pardbg.lab.schedules.page import TableLook, svg, table_page
from pardbg.lab.schedules.schedule_table import dump, from_plan, parse
from pardbg.lab.schedules.schedule_text import grid, verdict
from pardbg.lab.schedules.sheet import sheet
from tests.harness import Found, campaign
from tests.siege.limited import limited
from tests.unit.trace_builder import one_f_one_b

TAKEN: Final = Durations(1e6, 2e6, 1e6, 1e6)
SHAPES: Final = ((2, 4), (4, 8), (8, 64), (16, 400), (64, 128))
"""Ranks and microbatches of tables of up to 100 kB."""
ODD: Final = (
    "999999F0", "0F999999", "32767F32767", "(0F0;1B0)OVERLAP_F_B", "0SEND_F0", "1RECV_F0", "0B0",
    "0F0", "", "x" * 200_000, '"', '"0F0\n', "\x00", "0UNSHARD", "0W0", "0I0", ",", "\n", "\r", "λ",
    "," * 50_000, "\n" * 5_000, "0F0," * 20_000,
)  # fmt: skip


def text(rng: random.Random) -> str:
    """A schedule with some cells or lines moved, doubled or replaced."""
    said = dump(from_plan(one_f_one_b(*rng.choice(SHAPES))))
    if rng.random() < 0.2:
        said = "\n".join(rng.sample(lines := said.split("\n"), len(lines)))
    cells = said.split(",")
    for _ in range(rng.choice((0, 1, 1, 2, 8))):
        at, way = rng.randrange(len(cells)), rng.randrange(5)
        if way == 0:
            cells.insert(at, rng.choice(ODD))
        elif way == 1 and len(cells) > 1:
            del cells[at]
        elif way == 2:
            cells += cells[: min(at, 5000)]
        else:
            cells[at] = rng.choice(ODD if way == 3 else cells)
    return ",".join(cells)


def look(said: str) -> None:
    """As ``pardbg schedule lint`` and ``show``, and as the editor after a key."""
    table = parse(said)
    verdict("x.csv", lint(table))
    grid(table)
    seen = sheet(table, TAKEN)
    table_page(seen, TableLook("x.csv", "even"), 120, 36)
    svg(seen)


def run(seed: int, count: int) -> Found:
    """Try tables; the slowest by seconds of processor time."""
    seeds = range(seed, seed + count)
    return campaign("tables", lambda _, rng, __: limited(partial(look, text(rng))).tried(), seeds)
