"""Thirty ticks through one step at 80x24, forth and back: the thirtieth picture is as clear as the
first. ``walks/NAME.txt`` keeps every fifth one; ``python -m tests.ui.test_walks`` writes them anew.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from pardbg.ui.app import PardbgApp
from tests.ui.fakes import shows, text_of
from tests.ui.test_recordings import replayed, type_

WALKS = Path(__file__).parent / "walks"
TICKS, EACH = 30, 5
TOTAL = {"1f1b": 22, "interleaved": 38, "zbv": 51}
"""Ticks of a step, p=4, m=8: 2m + 2(p-1); with v=2 stages a rank 2vm + 2(p-1); with backward in
two actions 3vm + p-1."""
BEFORE = {"zbv": ((0, 49), (1, None), (1, 50), (2, None), (2, 51), (3, None))}
"""(tick of step 4, that of step 3 that ends): some ranks are in the next step already."""


def page(app: PardbgApp) -> str:
    """The grid and the words under it: without header, tabs, time bar and keys."""
    return "\n".join(row.rstrip() for row in text_of(app).split("\n")[2:22])


async def walk(name: str) -> list[str]:
    """Every fifth picture of 30 ticks on from the begin of step 4; then back to the first tick."""
    pictures = []
    async with replayed(name, (80, 24)) as (app, pilot):
        await type_(pilot, "goto step 3")
        await pilot.press("2", "g")
        await shows(app, "by tick")
        for tick, late in BEFORE.get(name, ()):
            await pilot.press("full_stop")
            also = "" if late is None else f"; tick {late} of step 3 has ended"
            await shows(app, f" step 4, tick {tick}{also} ")
            await shows(app, f"step 4  tick {tick} of 51")  # the words and the grid agree
        first = len(BEFORE.get(name, ())) // 2
        at = [(4 + n // TOTAL[name], 1 + n % TOTAL[name]) for n in range(first, first + TICKS)]
        for number, (step, tick) in enumerate(at, 1):
            await pilot.press("full_stop")
            await shows(app, f"step {step}  tick {tick} of {TOTAL[name]}")
            await shows(app, f"  tick {tick} ran ")
            if number % EACH == 0:
                pictures.append(page(app))
        for step, tick in reversed(at[:-1]):
            await pilot.press("comma")
            await shows(app, f"step {step}  tick {tick} of {TOTAL[name]}")
    return pictures


@pytest.mark.parametrize("name", TOTAL)
@pytest.mark.timeout(240)
async def test_thirty_ticks_leave_the_picture_clear(name: str) -> None:
    pictures = await walk(name)
    for picture in pictures:
        rows = [row for row in picture.split("\n") if re.match(r"[▸ ]r\d ", row)]
        assert len(rows) == 4  # a rank each, whatever has run
        assert len({row.find("┊") for row in rows}) == 1  # the gutter never moves into the cells
        assert all("…" not in row.partition("┊")[0] for row in rows)
    kept = (WALKS / f"{name}.txt").read_text("utf-8").split("\n\f\n")
    assert pictures == kept


def main() -> None:
    WALKS.mkdir(exist_ok=True)
    for name in TOTAL:
        (WALKS / f"{name}.txt").write_text("\n\f\n".join(asyncio.run(walk(name))), "utf-8")


if __name__ == "__main__":
    main()
