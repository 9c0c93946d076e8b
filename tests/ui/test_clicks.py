"""The mouse: what is clicked is what one comes to look at."""

from __future__ import annotations

from dataclasses import replace

from textual.pilot import Pilot

from pardbg.ui.app import PardbgApp
from tests.ui import sample
from tests.ui.fakes import app_on, shows, text_of, until
from tests.ui.test_recordings import replayed, type_


async def click_on(app: PardbgApp, pilot: Pilot[None], text: str, into: int = 0) -> None:
    """Click the first place on the screen where ``text`` stands, ``into`` cells further on."""
    rows = text_of(app).split("\n")
    y = next(at for at, row in enumerate(rows) if text in row)
    await pilot.click(offset=(rows[y].index(text) + into, y))


async def test_an_edge_and_a_tab() -> None:
    app = app_on(sample.snapshot_ddp(), start="overview")
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(app, "5 Traffic")
        await click_on(app, pilot, "5 Traffic")
        await shows(app, "2 ┄┄▶  3")
        await click_on(app, pilot, "2 ┄┄▶  3")
        page = app.main.pages["traffic"]
        await until(lambda: page.at(app.main.shared.frame) == 2, "the third")  # type: ignore[attr-defined]


async def test_a_cell_of_the_tick_grid() -> None:
    async with replayed("1f1b", (120, 40)) as (app, pilot):
        await type_(pilot, "goto step 5")
        await pilot.press("2", "g")
        await shows(app, "by tick")
        rows = text_of(app).split("\n")
        y = next(at for at, row in enumerate(rows) if row[1:].startswith("r2") and "F0" in row)
        await pilot.click(offset=(rows[y].index("F0"), y))
        await shows(app, "┌ r2 2F0 tick 3")  # it comes to the third stage in the third tick


async def test_a_finding_comes_in_full() -> None:
    base = sample.snapshot_1f1b()
    first = base.findings[0]
    other = replace(first, kind="slow-loader", culprits=(3,), t_ns=first.t_ns - 1)
    app = app_on(replace(base, findings=(first, other)), start="findings")
    async with app.run_test(size=(120, 40)) as pilot:
        page = app.main.pages["findings"]
        await until(lambda: app.main.shared.frame is not None and page.shown, "the list")
        await click_on(app, pilot, " slow-loader", 4)
        await until(lambda: page.at(app.main.shared.frame) == 1, "the second")  # type: ignore[attr-defined]
        await until(lambda: "culprit  rank 3" in text_of(app), "in full beside the list")
