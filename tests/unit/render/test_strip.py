"""Strips of shares, by hand."""

from __future__ import annotations

from pardbg.render.draw.cells import Segment
from pardbg.render.draw.strip import cells_each, strip

HALF = ((0.5, "compute"), (0.5, "waiting"))
WHOLE = ((1.0, "compute"),)


def test_a_column_a_step_over_two_lines() -> None:
    upper, lower = strip([HALF, WHOLE, None], 3, 2)
    assert upper == (Segment("█", "strip.waiting"), Segment("█", "strip.compute"), Segment(" "))
    assert lower == (Segment("██", "strip.compute"), Segment(" "))


def test_parts_of_a_cell_are_ink_below_and_ground_above() -> None:
    (row,) = strip([HALF, ((0.25, "compute"),), ((0.75, "comm"), (0.25, "waiting"))], 3, 1)
    assert row == (
        Segment("▄", "strip.compute/strip.waiting"), Segment("▂", "strip.compute"),
        Segment("▆", "strip.comm/strip.waiting"),
    )  # fmt: skip


def test_of_three_parts_in_a_cell_the_two_largest_show() -> None:
    (row,) = strip([((0.5, "compute"), (0.1, "comm"), (0.4, "waiting"))], 1, 1)
    assert row == (Segment("▄", "strip.compute/strip.waiting"),)


def test_the_newest_steps_are_kept_and_few_are_wide() -> None:
    (row,) = strip([None, WHOLE, WHOLE], 4, 1, 2)
    assert row == (Segment("████", "strip.compute"),)
    assert [cells_each(number, 20) for number in (0, 1, 4, 20, 64)] == [16, 16, 5, 1, 1]


def test_without_blocks_a_cell_is_the_sign_of_what_most_of_it_is() -> None:
    signs = {"compute": "#", "waiting": "."}
    column = ((0.4, "compute"), (0.6, "waiting"))
    assert strip([column, None, WHOLE], 3, 1, 1, signs) == [
        (Segment(".", "strip.waiting"), Segment(" "), Segment("#", "strip.compute")),
    ]  # fmt: skip
    upper, lower = strip([column], 1, 2, 1, signs)  # lower: 0.8 of it; upper: all waits
    assert (upper, lower) == ((Segment(".", "strip.waiting"),), (Segment("#", "strip.compute"),))
