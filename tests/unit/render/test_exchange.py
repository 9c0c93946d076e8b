"""The all_to_all matrix, the load beside it, and the picture of a sharded step, hand-made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pardbg.analysis.comm.traffic import Edge, TrafficView
from pardbg.analysis.memory.sharding import ShardingView, Stretch, UnitRow
from pardbg.render.draw.cells import line_width, plain
from pardbg.render.pages.exchange import exchange, exchanged, loads
from pardbg.render.pages.memory_course import LEAST_ROWS, sharding
from tests.ui import sample


def moved(src: int, dst: int, num_bytes: int) -> Edge:
    return Edge(src, dst, num_bytes, 0.0, "observed", 1, False)


VIEW = TrafficView(
    2_000_000_000,
    (moved(0, 1, 1000), moved(0, 2, 3000), moved(1, 0, 1000), moved(2, 0, 500),
     Edge(0, 1, 9999, 0.0, "modelled", 1, False)),
    (),
    (("ep", "all_to_all", 4, 5500, None),),
)  # fmt: skip


def test_the_matrix_has_each_pair_and_both_sums() -> None:
    assert exchanged(VIEW, [0, 1, 2])
    rows = [plain(row).split() for row in exchange(VIEW, [0, 1, 2], 80)]
    assert rows[2] == ["0", "╲", "1", "kB", "3", "kB", "4", "kB"]
    assert rows[3] == ["1", "1", "kB", "╲", "·", "1", "kB"]
    assert rows[4] == ["2", "500", "B", "·", "╲", "500", "B"]
    assert rows[5] == ["received", "1.50", "kB", "1", "kB", "3", "kB"]
    assert all(line_width(row) <= 80 for row in exchange(VIEW, [0, 1, 2], 80))


def test_no_matrix_where_figures_do_not_fit_or_nothing_was_exchanged() -> None:
    assert exchange(VIEW, list(range(8)), 80) == []
    assert not exchanged(replace(VIEW, ops=(("dp", "send", 1, 1, None),)), [0, 1, 2])
    assert not exchanged(replace(VIEW, edges=VIEW.edges[-1:]), [0, 1, 2])


def test_the_load_is_what_was_logged_in_parts_of_a_name() -> None:
    first, *others = sample.snapshot_1f1b().ranks
    logged = (("lr", 0.1), ("expert/1", 30.0), ("expert/0", 10.0), ("alone/0", 1.0), ("a/b", 2.0))
    ranks = [replace(first, metrics=logged), *others]
    (_, made) = loads(ranks, 80, 5)
    # 10 of at most 30: 3 eighths; 30 is 1.5 times the mean of 20, not more
    assert plain(made).split() == ["expert", "0▃10", "1█30"]
    assert loads(others, 80, 5) == [] and loads(ranks, 80, 1) == []


def stretch(t0: int, t1: int) -> Stretch:
    return Stretch(t0 * 1000, t1 * 1000)


STEP = ShardingView(
    rank=2, step=7, t0_ns=0, t1_ns=60_000,
    phases=(("forward", 0, 30_000), ("recompute", 31_000, 32_000), ("backward", 30_000, 60_000)),
    units=(
        UnitRow("root", 1024, (stretch(0, 5),), (stretch(5, 55),), (stretch(55, 60),)),
        UnitRow("1", 3072, (stretch(5, 10), stretch(30, 40)), (stretch(10, 20), stretch(40, 50)),
                (stretch(50, 55),)),
    ),
    curve=((5_000, 1024), (10_000, 4096), (20_000, 1024), (40_000, 4096), (50_000, 1024),
           (55_000, 0)),
    peak_bytes=4096, whole_bytes=4096,
)  # fmt: skip


def test_a_sharded_step_is_drawn_to_scale() -> None:
    """60 columns of drawing, a microsecond each: the gutter is 4 for ``root`` and 13 beside it."""
    title, phases, root, one, together = map(plain, sharding(STEP, 4 + 13 + 2 + 60, 5 + 1))
    assert "rank 2 in step 7" in title and title.endswith("at most 4 KiB of 4 KiB = 100%")
    assert phases[17:].startswith("forward ") and phases[17 + 30 :].startswith("backward ")
    assert "recompute" not in phases
    assert root[17:] == "░" * 5 + " " * 50 + "▒" * 5
    assert one[17:] == " " * 5 + "░" * 5 + " " * 20 + "░" * 10 + " " * 10 + "▒" * 5 + " " * 5
    assert together[17:] == " " * 5 + "▂" * 5 + "█" * 10 + "▂" * 20 + "█" * 10 + "▂" * 5 + " " * 5


def test_whole_is_a_fill_and_its_place_is_the_stretch() -> None:
    runs = sharding(STEP, 79, 6)[3]
    filled = [(run.text, run.style) for run in runs if run.style == "mem.P"]
    assert filled == [(" " * 10, "mem.P"), (" " * 10, "mem.P")]


@pytest.mark.parametrize("rows", [6, 8, 12])
def test_many_units_are_thinned_to_the_rows_there_are(rows: int) -> None:
    units = tuple(replace(STEP.units[1], name=f"layers.{n}") for n in range(40))
    drawn = sharding(replace(STEP, units=(STEP.units[0], *units)), 80, rows)
    assert len(drawn) == rows
    assert plain(drawn[2]).split()[0] == "root" and plain(drawn[-2]).split()[0] == "layers.39"
    assert sharding(STEP, 80, LEAST_ROWS - 1) == []
