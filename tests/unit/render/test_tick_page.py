"""The tick grid as drawn: 30 ticks through real recorded steps at 80x24, cells pinned by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.base.asof import View
from pardbg.analysis.pipeline.pipelines import layouts
from pardbg.analysis.pipeline.ticks.cell import TicksWant, ticks_shown
from pardbg.analysis.pipeline.ticks.grid import TickRow, tick_ends
from pardbg.render.draw.cells import Picture, plain
from pardbg.render.pages.pipeline.tick_page import NAME, TickPageState, cell_at, tick_page
from pardbg.render.pages.pipeline.tick_row import WAITS, Window, grid_row, gutter
from pardbg.session.reader import load
from pardbg.store.store import Store

SESSIONS = Path(__file__).parents[3] / "sessions"
STEP = 4


def walk(store: Store, number: int) -> list[int]:
    """The moments of the first ticks from a step on."""
    view = View(store, None)
    layout = layouts(view)[0]
    ends = [end for step in (STEP, STEP + 1) for _, end in tick_ends(view, layout, step)]
    return ends[:number]


def drawn(store: Store, t_ns: int, cells: int = 80, rows: int = 24, rank: int = 0,
          action: str | None = None) -> Picture:  # fmt: skip
    shown = ticks_shown(store, t_ns, TicksWant(rank, action, always=True))
    assert shown is not None
    return tick_page(
        snapshot(store, t_ns, partial=True), shown, cells, rows, TickPageState(rank, action)
    )


def rows_of(picture: Picture) -> list[str]:
    lines = [plain(line) for line in picture.body]
    found = (next(x for x in lines if x[1:].startswith(f"r{rank} ")) for rank in range(4))
    return [line[NAME:].partition("┊")[0].rstrip() for line in found]


@pytest.mark.parametrize("ahead", [False, True])
def test_a_rank_that_ran_ahead_waits_in_no_column_that_it_has_passed(ahead: bool) -> None:
    """At tick 5 rank 0 has run F0 to F3, and B0 in column 8 or not."""
    store = load(SESSIONS / "1f1b.mcap")
    shown = ticks_shown(store, walk(store, 5)[-1], TicksWant(0, None, always=True))
    assert shown is not None
    grid = shown.grids[0]
    cells = tuple(replace(c, state="done") if c.tick == 8 and ahead else c
                  for c in grid.rows[0].cells)  # fmt: skip
    row = replace(grid.rows[0], cells=cells, waits_for="1B0")
    text = plain(grid_row(row, grid, Window(1, 22, 3), None).line())
    assert grid.tick == 5 and (WAITS in text) != ahead


def test_1f1b_tick_by_tick_by_hand() -> None:
    """Tick k ends column k. Real ranks run ahead where they can (forwards are shorter), so what
    lies beyond the column may have run; what lies in it and before has."""
    store = load(SESSIONS / "1f1b.mcap")
    wavefront = {
        1: "r0 F0", 2: "r0 F1 · r1 F0", 3: "r0 F2 · r1 F1 · r2 F0",
        4: "r0 F3 · r1 F2 · r2 F1 · r3 F0", 5: "r3 B0", 6: "r2 B0 · r3 F1",
        7: "r1 B0 · r2 F2 · r3 B1", 8: "r0 B0 · r1 F3 · r2 B1 · r3 F2",
        9: "r0 F4 · r1 B1 · r2 F3 · r3 B2", 10: "r0 B1 · r1 F4 · r2 B2 · r3 F3",
        11: "r0 F5 · r1 B2 · r2 F4 · r3 B3", 12: "r0 B2 · r1 F5 · r2 B3 · r3 F4",
        16: "r0 B4 · r1 F7 · r2 B5 · r3 F6", 17: "r1 B5 · r2 F7 · r3 B6",
        18: "r0 B5 · r2 B6 · r3 F7", 19: "r1 B6 · r3 B7", 20: "r0 B6 · r2 B7", 21: "r1 B7",
        22: "r0 B7",
    }  # fmt: skip
    view = View(store, None)
    seen = 0
    for tick, end in tick_ends(view, layouts(view)[0], STEP):
        text = "\n".join(plain(line) for line in drawn(store, end).body)
        if tick in wavefront:
            assert f"tick {tick} ran {wavefront[tick]}" in text.replace("\n", " "), text
            seen += 1
    assert seen >= 15


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zbv"])
def test_thirty_ticks_leave_the_picture_as_clear_as_the_first(name: str) -> None:
    store = load(SESSIONS / f"{name}.mcap")
    places: dict[tuple[int, int], dict[int, str]] = {}
    moments = walk(store, 30)
    assert len(moments) == 30
    for t_ns in moments:
        picture = drawn(store, t_ns)
        assert len(picture.head) + len(picture.body) + len(picture.foot) <= 24
        ruler = plain(picture.head[-1])
        for rank, row in enumerate(rows_of(picture)):
            # Nothing but actions, empty ticks and edges: no label of a wait, hold or gap.
            assert not row.strip(" ·◂▕▏▸FBIW0123456789"), row
            # The same window shows the same action at the same place.
            for x, char in enumerate(row):
                if char in "FBIW":
                    known = places.setdefault((rank, hash(ruler)), {})
                    assert known.setdefault(x, row[x : x + 2]) == row[x : x + 2]


def test_the_whole_step_at_120_cells() -> None:
    store = load(SESSIONS / "1f1b.mcap")
    picture = drawn(store, walk(store, 22)[-1], 120, 40)
    assert rows_of(picture) == [
        " F0  F1  F2  F3  ·   ·   ·   B0  F4  B1  F5  B2  F6  B3  F7  B4  ·   B5  ·   B6  ·   B7",
        " ·   F0  F1  F2  ·   ·   B0  F3  B1  F4  B2  F5  B3  F6  B4  F7  B5  ·   B6  ·   B7  ·",
        " ·   ·   F0  F1  ·   B0  F2  B1  F3  B2  F4  B3  F5  B4  F6  B5  F7  B6  ·   B7  ·   ·",
        " ·   ·   ·   F0  B0  F1  B1  F2  B2  F3  B3  F4  B4  F5  B5  F6  B6  F7  B7  ·   ·   ·",
    ]
    assert plain(picture.head[0]).rstrip().endswith(f"step {STEP}  tick 22 of 22  done 64 of 64")


def test_a_narrow_window_keeps_the_tick_in_view_and_says_what_lies_beyond() -> None:
    store = load(SESSIONS / "zbv.mcap")
    picture = drawn(store, walk(store, 30)[-1])
    assert " 30 " in plain(picture.head[-1])
    assert "◀" in plain(picture.head[-1]) and "▶" in plain(picture.head[-1])


def test_the_cell_under_the_mouse_and_its_answer() -> None:
    store = load(SESSIONS / "1f1b.mcap")
    end = walk(store, 22)[-1]
    shown = ticks_shown(store, end, TicksWant(1, "1B1", always=True))
    assert shown is not None
    # column of tick 9 at 120 cells: cells are 4 wide, the body begins after the gap
    found = cell_at(
        snapshot(store, end, partial=True), shown, 120, TickPageState(1), 1, NAME + 8 * 4 + 1
    )
    assert found is not None and found.action == "1B1"
    assert cell_at(snapshot(store, end, partial=True), shown, 120, TickPageState(1), 1, 2) is None
    text = "\n".join(plain(line) for line in drawn(store, end, 120, 40, 1, "1B1").body)
    assert "r1 1B1 tick 9" in text and "median" in text and "32.8 kB ◂ r2" in text


def test_a_gate_is_said_in_full_where_nothing_stands_beside_it() -> None:
    row = TickRow(2, (2,), (), "optimizer", None, None, 0, None)
    assert "optimizer" in plain(gutter(row, many_stages=False, cells=20))
    waits = replace(row, gate="recv B7 from r3", waits_for="3B7", waits_rank=3)
    shown = plain(gutter(waits, many_stages=False, cells=34))
    assert "recv B7" in shown and "◂ 3B7 r3" in shown
