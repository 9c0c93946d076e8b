"""A thousand ranks on the screen: what the engine is asked for, and where rows go on."""

from __future__ import annotations

import pytest

from tests.ui import sample
from tests.ui.fakes import app_on, text_of, until

RANKS = 1024


async def test_the_engine_is_asked_for_the_rows_in_sight() -> None:
    app = app_on(sample.snapshot_ddp(RANKS))

    def seen() -> bool:
        """Every row on the screen and the chosen one, and few others."""
        asked, shown = app.engine._want.ranks, app.main.page.rows_in_view()
        return asked is not None and len(asked) < 300 and {app.main.shared.rank, *shown} <= asked

    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: app.main.shared.frame is not None, "the first frame")
        await until(lambda: len(app.main.page.rows_in_view()) > 20 and seen(), "the rows in sight")
        assert app.engine._want.parts == frozenset()
        app.main.page.scroll_rows(500)
        app.main.want_page()
        assert seen() and app.main.page.rows_in_view()[0] >= 500
        for key, parts in (("4", {"collectives", "p2p"}), ("5", {"traffic"}), ("6", {"memory"})):
            await pilot.press(key)
            assert app.engine._want.parts == parts


@pytest.mark.parametrize("size", ((80, 24), (120, 40), (200, 60)), ids=str)
async def test_where_rows_go_on_no_row_is_cut(size: tuple[int, int]) -> None:
    app = app_on(sample.snapshot_ddp(RANKS))
    async with app.run_test(size=size):
        await until(lambda: " more" in text_of(app), "rows go on")
        (hint,) = [row for row in text_of(app).split("\n") if "▼" in row and "more" in row]
        pane = app.main.page
        assert hint.strip() == f"▼ {RANKS - pane.top - pane.room + 1} more"
