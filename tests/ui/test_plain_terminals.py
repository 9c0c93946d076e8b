"""What terminals without UTF-8, or with 16 colours, show in place of blocks, dots and grounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from pardbg.analysis.answers.snapshot import Snapshot, snapshot
from pardbg.render.draw.cells import SELECTED, plain
from pardbg.render.draw.signs import ascii_of
from pardbg.render.pages.memory import memory
from pardbg.render.pages.overview.page import OverviewPageState, overview
from pardbg.session.reader import load
from pardbg.ui.palette import style

SESSIONS = Path(__file__).parents[2] / "sessions"


@pytest.fixture(scope="module")
def creep() -> Snapshot:
    return snapshot(load(SESSIONS / "fault-memory-creep.mcap"), None)


def test_dots_of_a_chart_keep_their_half_of_the_cell() -> None:
    assert ascii_of("⠉⠒⣀⠤⡇⠁⢀") == "''..:'."
    assert ascii_of("━╸") == "--", "the end of a thin bar"


@pytest.mark.parametrize("cells", [120, 200])
def test_the_legend_of_the_strips_has_their_signs(creep: Snapshot, cells: int) -> None:
    picture = overview(creep, cells, 36, OverviewPageState(ascii=True))
    (said,) = [row for row in map(plain, picture.head) if "compute" in row and "waiting" in row]
    assert "# compute" in said and ". waiting" in said and "█" not in said


def test_areas_are_letters(creep: Snapshot) -> None:
    picture = memory(creep, 120, 36, 2, ascii_=True)
    rows = [plain(row) for row in picture.body]
    charts = rows[next(at for at, row in enumerate(rows) if "over time" in row) :]
    text = "\n".join(row[:58] for row in charts)
    for sign in ("PPP", "OOO", "AAA", "+++", "..."):
        assert sign in text
    assert not set("▁▂▃▄▅▆▇█") & set(text)


def test_the_mark_of_what_is_expected_hides_no_category(creep: Snapshot) -> None:
    """At 80 cells P, G, O and A have a cell each, and the expected end of O is in one of them."""
    rows = [plain(row) for row in memory(creep, 80, 20).body][:4]
    assert all("PGOA" in row for row in rows)


def test_a_selected_row_of_16_colours_is_one_bar() -> None:
    looks = {style("16", token + SELECTED) for token in ("", "dim", "spark", "warn")}
    assert len(looks) == 1 and looks.pop().reverse
    assert not style("16", "strip.compute" + SELECTED).reverse, "strips stay"
    assert style("dark", "warn" + SELECTED).color != style("dark", "dim" + SELECTED).color
