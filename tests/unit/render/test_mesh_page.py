"""Ranks as squares, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pardbg.analysis.answers.device_mesh import Axis, Mesh
from pardbg.analysis.answers.ranks import RankNow
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.render.draw.cells import Segment, line_width, plain
from pardbg.render.draw.squares import Square, squares
from pardbg.render.pages.mesh.measures import by_coordinate, drawn, measures, over_like
from pardbg.render.pages.mesh.page import layout_of, mesh, square_at
from pardbg.render.pages.mesh.square_layout import lay_out
from pardbg.render.pages.overview.page import OverviewPageState
from tests.ui.sample import MS, snapshot_ddp

CUBE = Mesh((Axis("dp", 32), Axis("pp", 8), Axis("tp", 4)))
LATE = 613


def many(excess: dict[int, float], mesh_: Mesh = CUBE) -> Snapshot:
    """1,024 ranks that compute half of steps of 100 ms, and wait for the other half but 5%."""
    made = snapshot_ddp(1024)

    def row(rank: RankNow) -> RankNow:
        compute = 0.5 * (1 + excess.get(rank.rank, 0.0))
        return replace(rank, compute_fraction=compute, wait_fraction=0.95 - compute,
                       step_ns=(100 * MS,))  # fmt: skip

    return replace(made, ranks=tuple(map(row, made.ranks)), mesh=mesh_, hang=None, findings=())


def test_two_squares_in_a_cell() -> None:
    a, b = Square("a", 1), Square("b", 7)
    rows = [[a, a, None, None], [a, b, b, None], [b, None, None, None]]
    assert squares(rows, "half") == [
        (Segment("█", "a"), Segment("▀", "a/b"), Segment("▄", "b"), Segment(" ")),
        (Segment("▀", "b"), Segment("   ")),
    ]
    assert squares(rows[:1], "wide") == [(Segment("████", "a"), Segment("    "))]
    assert squares(rows[1:2], "digit") == [(Segment("1", "a"), Segment("77", "b"), Segment(" "))]


def test_squares_lie_in_mesh_order() -> None:
    """dp down, pp in blocks of four tp with a gap between: 8·4 + 7 columns, 32 rows in 16 lines."""
    layout = lay_out(CUBE, 1024, 40, 16, False)
    assert (layout.form, layout.each, layout.cells, layout.lines) == ("half", 1, 39, 16)
    assert layout.rows[0][:6] == (0, 1, 2, 3, -1, 4) and layout.rows[1][0] == 32
    assert layout.place(LATE) == (19, 6)  # dp 19; pp 1 begins in column 5
    assert layout.beside(615, 0, 1) == 616  # tp 3 is the last of pp 1: over the gap
    assert layout.beside(LATE, 1, 0) == LATE + 32 and layout.beside(0, -1, 0) == 0
    assert layout.heads[1] == (5, 0, 1)


@pytest.mark.parametrize("by", [1, 2, 3, 4])
@pytest.mark.parametrize(("cells", "lines"), [(40, 16), (300, 64), (20, 3)])
def test_a_turned_mesh_shows_each_rank_once_at_its_coordinates(
    by: int, cells: int, lines: int
) -> None:
    """Rank 613 is dp 19, pp 1, tp 1; of the mesh turned once, pp 1 is its row's."""
    turned = CUBE.turn(by)
    assert sorted(turned.coordinates(LATE)) == [1, 1, 19]
    layout = lay_out(turned, 1024, cells, lines, False)
    shown = [rank for row in layout.rows for first in row if first >= 0
             for rank in layout.ranks(first)]  # fmt: skip
    assert sorted(shown) == list(range(1024))
    for rank in (0, LATE, 1023):
        place = layout.place(rank)
        first = layout.rank_at(*place) if place is not None else None
        assert first is not None and rank in layout.ranks(first)


def test_turned_once_pp_goes_down_and_neighbours_are_dp() -> None:
    turned = CUBE.turn(1)
    assert [axis.name for axis in turned.axes] == ["pp", "tp", "dp"]
    assert [turned.stride(at) for at in range(3)] == [4, 1, 32]
    assert turned.coordinates(LATE) == (1, 1, 19)
    layout = lay_out(turned, 1024, 132, 8, False)  # 4 blocks of 32, a gap between: 131 columns
    assert layout.rows[0][:3] == (0, 32, 64) and layout.rows[1][0] == 4
    assert layout.rows[0][33] == 1 and layout.beside(LATE, 0, 1) == LATE + 32
    assert CUBE.turn(3).coordinates(LATE) == CUBE.coordinates(LATE)


@pytest.mark.parametrize(
    ("axes", "cells", "lines", "form", "each", "folds"),
    [
        ((32, 8, 4), 80, 32, "wide", 1, 1),  # 39 columns of two cells
        ((32, 8, 4), 32, 16, "half", 1, 1),  # without gaps
        ((32, 8, 4), 70, 8, "half", 1, 2),  # dp in two parts of 16, side by side
        ((128, 8), 40, 16, "half", 1, 4),
        ((1024,), 70, 16, "half", 1, 32),
        ((1024, 10), 40, 16, "half", 8, 4),  # 10,240 ranks: 128 rows of squares in 4 parts
    ],
)
def test_the_largest_squares_that_fit_are_drawn(
    axes: tuple[int, ...], cells: int, lines: int, form: str, each: int, folds: int
) -> None:
    made = Mesh(tuple(Axis("", size) for size in axes))
    num_ranks = 10_240 if axes[-1] == 10 else 1024
    layout = lay_out(made, num_ranks, cells, lines, False)
    assert (layout.form, layout.each, layout.folds) == (form, each, folds)
    assert layout.cells <= cells and layout.lines <= lines
    shown = [rank for row in layout.rows for first in row if first >= 0
             for rank in layout.ranks(first)]  # fmt: skip
    assert sorted(shown) == list(range(num_ranks))


def test_compute_is_beside_the_median_of_the_same_stage() -> None:
    """Stages of 50 and 80 ms: a rank of the first with 60 ms is 20% over its like."""
    ranks = many(dict.fromkeys(range(512), 0.6) | {1000: 0.2}).ranks
    staged = [replace(r, stages=(0 if r.rank >= 512 else 1,)) for r in ranks]
    found = over_like(staged)
    assert found[1000] == pytest.approx(0.2) and found[3] == pytest.approx(0)
    compute, waiting, _ = measures(staged)
    assert compute.worst == (1000, pytest.approx(0.2)) and compute.high == 0.05
    assert (waiting.low, waiting.high) == (pytest.approx(0.15), pytest.approx(0.45))


def test_one_rank_is_told_from_all_of_a_coordinate() -> None:
    one, *_ = measures(many({LATE: 0.19}).ranks)
    first = by_coordinate(CUBE, one)[0]
    # 32 ranks at dp 19, one of them 19% over: 0.6% in the mean; without it nothing
    assert (first.axis, first.at) == (0, 19)
    assert first.excess == pytest.approx(0.19 / 32) and first.without == pytest.approx(0)
    all_of_pp, *_ = measures(many({r: 0.19 for r in range(1024) if r // 4 % 8 == 5}).ranks)
    first = by_coordinate(CUBE, all_of_pp)[0]
    assert (first.axis, first.at) == (1, 5) and first.without == pytest.approx(0.19)


def test_excess_and_culprits_are_amber_and_a_square_of_several_shows_the_most() -> None:
    compute, waiting, _ = measures(many({LATE: 0.19}).ranks)
    layout = lay_out(CUBE, 1024, 40, 16, False)
    rows = drawn(layout, compute, ())
    amber = [(y, x) for y, row in enumerate(rows) for x, square in enumerate(row)
             if square is not None and square.style == "mesh.over"]  # fmt: skip
    assert amber == [layout.place(LATE)]
    assert drawn(layout, compute, {7})[0][8] == Square("mesh.over", 9)  # pp 1 tp 3
    assert drawn(layout, waiting, {7})[0][8] != Square("mesh.over", 9)
    coarse = lay_out(CUBE, 1024, 32, 8, False)
    place = coarse.place(LATE)
    assert coarse.each == 2 and place == (9, 5)
    assert drawn(coarse, compute, ())[9][5] == Square("mesh.over", 9)


@pytest.mark.parametrize("size", [(80, 20), (120, 35), (200, 55)], ids=str)
def test_the_page_fits_names_the_rank_and_answers_the_mouse(size: tuple[int, int]) -> None:
    snapshot, look = many({LATE: 0.19}), OverviewPageState(LATE)
    picture = mesh(snapshot, *size, look)
    assert len(picture.head) + len(picture.body) <= size[1]
    assert all(line_width(row) <= size[0] for row in (*picture.head, *picture.body))
    text = "\n".join(map(plain, picture.body))
    assert "r613 +19%" in text and "dp 32 × pp 8 × tp 4" in text
    layout, number = layout_of(snapshot, *size, look)
    assert layout.each == 1 and number == (1 if size[0] == 80 else 2)
    lines = [at for at, row in enumerate(picture.rows) if row == 0]
    assert len(lines) == 1 and "0" in plain(picture.body[lines[0]])[:8]
    assert square_at(layout, 0, 7) == 0 and square_at(layout, 0, 3) == -1


def test_values_that_are_not_known_are_ground() -> None:
    made = many({})
    made = replace(made, ranks=tuple(replace(r, compute_fraction=None) for r in made.ranks))
    compute, *_ = measures(made.ranks)
    assert not compute.values
    rows = drawn(lay_out(CUBE, 1024, 40, 16, False), compute, ())
    assert not any(square for row in rows for square in row)
    assert "not known" in "\n".join(map(plain, mesh(made, 120, 35, OverviewPageState(0)).body))
