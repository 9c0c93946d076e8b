"""The pipeline in a panel of the overview, and the panels that a wide screen has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pardbg.analysis.pipeline.implied import schedule_detail
from pardbg.render.draw.cells import line_width, plain
from pardbg.render.draw.regions import regions
from pardbg.render.pages.overview.page import OverviewPageState, overview
from pardbg.render.pages.pipeline.compact import compact
from tests.ui.sample import output, snapshot_1f1b, snapshot_ddp

PANELS = {"step time and loss", "pipeline", "ranks", "where a step goes", "findings", "output"}


@pytest.mark.parametrize("rows", [5, 6, 10, 16, 22, 40])
def test_the_panel_keeps_its_room_and_names_every_rank_it_has_room_for(rows: int) -> None:
    made = snapshot_1f1b()
    drawn = compact(made, 80, rows, schedule_detail(made.pipeline))
    assert len(drawn) <= rows and all(line_width(row) == 80 for row in drawn)
    text = [plain(row) for row in drawn]
    # 4 ranks, the rule and the ruler: in 6 rows a line each, in 5 one rank is left out and said.
    assert sum(row.startswith(" r") for row in text) == min(4, rows - 2)
    assert ("1 more" in text[0]) == (rows == 5)
    # A rank has 1 + plan + low + flight + gap lines: 22 rows have 20 for 4 * 5 - 1.
    assert sum("flight" in row for row in text) == (4 if rows >= 21 else 0)


def test_nothing_is_drawn_before_a_step_has_ended() -> None:
    made = snapshot_1f1b()
    assert made.pipeline is not None
    running = replace(made, pipeline=replace(made.pipeline, last_complete=None))
    assert compact(running, 80, 20, None) == [] and compact(snapshot_ddp(), 80, 20, None) == []


@pytest.mark.parametrize("cells", [120, 160, 200])
def test_a_wide_page_has_the_pipeline_beside_the_charts(cells: int) -> None:
    made = snapshot_1f1b()
    look = OverviewPageState(detail=schedule_detail(made.pipeline))
    picture = overview(made, cells, 55, look, output())
    rows = [*picture.head, *picture.body]
    assert len(rows) <= 55 and all(len(plain(row).rstrip()) <= cells for row in rows)
    found = {region.title: region for region in regions(rows)}
    assert ("pipeline" in found) == (cells >= 160)
    if cells >= 160:
        assert set(found) >= PANELS
        assert found["pipeline"].y == found["step time and loss"].y
        low = found["where a step goes"].y
        assert low > found["ranks"].y and low == found["output"].y == found["findings"].y
        # Right borders stand under each other, one cell from the page's edge.
        ends = {found[name].x + found[name].cells for name in ("pipeline", "output")}
        assert ends == {cells - 1}
