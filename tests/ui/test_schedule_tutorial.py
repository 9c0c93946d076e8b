"""docs/schedules.md: its keys, typed in the editor, give its pictures and its figures.

``python -m tests.ui.test_schedule_tutorial`` draws the pictures anew.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path

import pytest

from pardbg.analysis.whatif.plans import plan
from pardbg.lab.recipes.catalogue.tables import zb_h1
from pardbg.lab.schedules.compare import Durations
from pardbg.lab.schedules.page import svg
from pardbg.lab.schedules.schedule_app import ScheduleApp
from pardbg.lab.schedules.schedule_table import Table, from_plan
from pardbg.lab.schedules.sheet import Sheet, sheet
from tests.ui.fakes import until

DOCS = Path(__file__).parents[2] / "docs"
PICTURES = ("schedule-gpipe.svg", "schedule-1f1b.svg", "schedule-zbh1.svg")
COSTS = Durations(10e6, 20e6, 10e6, 10e6)


def blocks() -> list[list[str]]:
    """The keys of each block."""
    text = (DOCS / "schedules.md").read_text(encoding="utf-8")
    found = re.findall(r"```keys\n(.*?)```", text, re.DOTALL)
    return [[key for row in block.splitlines() for key in row.split("   ")[0].split()]
            for block in found]  # fmt: skip


async def typed() -> list[Sheet]:
    """What stands on screen before the first block and after each."""
    app = ScheduleApp(from_plan(plan("GPipe", 3, 1, 4)), partial(sheet, taken=COSTS),
                      name="mine.csv", costs="", save=saved)  # fmt: skip
    sheets = []
    async with app.run_test(size=(120, 40)) as pilot:
        for keys in ([], *blocks()):
            await pilot.press(*keys)
            await until(lambda: not app.look.stale, "the sheet of the newest draft")
            sheets.append(app.shown.sheet)
    return sheets


def saved(_table: Table, _other: str) -> str:
    return ""


def rows(table: Table) -> list[tuple[str, ...]]:
    return [tuple(cell.text for cell in row) for row in table.rows]


async def test_the_tutorials_keys_lead_from_gpipe_to_1f1b_to_zero_bubble() -> None:
    gpipe, one, zero = await typed()
    assert one.table.plan() == plan("1F1B", 3, 1, 4)
    assert rows(zero.table) == list(zb_h1(3, 4).rows)
    figures = [(s.predicted.step_ns, s.stage_peaks) for s in (gpipe, one, zero)]
    # (m + p - 1) x 30 ms twice; ZB-H1: two forwards to the last rank, then 4 x 30 ms
    assert figures == [(180e6, (4, 4, 4)), (180e6, (3, 2, 1)), (140e6, (3, 3, 3))]
    assert all(s.predicted.verdict.good for s in (gpipe, one, zero))
    for name, made in zip(PICTURES, (gpipe, one, zero), strict=True):
        assert (DOCS / name).read_text() == svg(made, 640), f"{name}: see this file's head"


@pytest.mark.parametrize("name", PICTURES)
def test_the_pictures_are_small_and_shown(name: str) -> None:
    assert (DOCS / name).stat().st_size < 10_000
    assert f"]({name})" in (DOCS / "schedules.md").read_text(encoding="utf-8")


if __name__ == "__main__":
    for name, made in zip(PICTURES, asyncio.run(typed()), strict=True):
        (DOCS / name).write_text(svg(made, 640))
