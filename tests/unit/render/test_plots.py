"""Charts: each value is one mark, at the height and the place that the axis says."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest

from pardbg import words
from pardbg.analysis.comm.op_rows import Arrival, CollectiveRow
from pardbg.render.draw.cells import as_row, plain
from pardbg.render.draw.plots import STEPS, Scale, Series, by_step, plot
from pardbg.render.pages.collective_charts import charts, sums

MS = 1_000_000


def rows_of(chart: list[tuple[object, ...]]) -> list[str]:
    return [plain(row) for row in chart]  # type: ignore[arg-type]


def test_five_values_are_five_points_on_axes_with_ticks_and_units() -> None:
    chart = by_step(
        [(0, 10 * MS), (1, 20 * MS), (2, 30 * MS), (3, 20 * MS), (4, 10 * MS)],
        40, 12, "spark", words.duration,
    )  # fmt: skip
    rows = rows_of(chart)
    assert [len(row) for row in rows] == [40] * 12
    assert "".join(rows).count("●") == 5
    assert rows[0].count("●") == 1 and rows[9].count("●") == 2  # the highest, the two lowest
    assert rows[0].lstrip().startswith("30 ms ┤") and rows[9].lstrip().startswith("10 ms ┤")
    assert rows[-1].split() == ["step", "0", "2", "4"]
    assert {run.style for row in chart for run in row if "●" in run.text} == {"spark"}


def test_what_is_not_finite_stands_at_the_top_where_it_happened() -> None:
    rows = rows_of(by_step([(0, 3.0), (1, 2.0), (2, float("nan"))], 30, 10, "loss", words.number))
    assert "".join(rows).count("●") == 2
    assert rows[0].count("✗") == 1 and rows[0].index("✗") > rows[0].index("●")


def test_what_lies_ahead_is_dim_also_where_it_is_not_finite() -> None:
    nan = float("nan")
    chart = by_step([(0, 3.0), (1, nan)], 30, 10, "loss", words.number, ahead=[(2, nan), (3, 2.0)])
    marks = [(run.style, char) for row in chart for run in row for char in run.text if char in "●✗"]
    assert sorted(marks) == [("bad", "✗"), ("faint", "●"), ("faint", "✗"), ("loss", "●")]


def test_nothing_is_drawn_between_two_values() -> None:
    rows = rows_of(by_step([(0, 1.0), (9, 2.0)], 40, 10, "x", words.number))
    inside = "".join(row.split("│")[-1].split("┤")[-1] for row in rows[:-2])
    assert sorted(inside.split()) == ["●", "●"]


def test_a_level_is_a_broken_line_behind_the_points() -> None:
    rows = rows_of(by_step([(0, 1.0), (1, 3.0)], 40, 11, "x", words.number, 2.0))
    (level,) = (row for row in rows if "╌" in row)
    assert rows.index(level) == 4  # nine rows for 3 to 1: 2 lies in the middle one
    assert set(level.split("┤")[1]) == {"╌"}


def test_log_axes_give_each_power_of_ten_the_same_room() -> None:
    points = tuple((10.0**at, 10.0**at) for at in range(4))
    size, rate = Scale(words.size, log=True), Scale(words.busbw, log=True)
    rows = rows_of(plot([Series(points, "x")], 50, 14, size, rate))
    places = sorted((row.index("●"), y) for y, row in enumerate(rows) if "●" in row)
    steps = [(b[0] - a[0], a[1] - b[1]) for a, b in pairwise(places)]
    assert len(places) == 4
    assert max(x for x, _ in steps) - min(x for x, _ in steps) <= 1
    assert max(y for _, y in steps) - min(y for _, y in steps) <= 1


def test_many_values_are_dots_and_no_room_is_no_chart() -> None:
    many = [(at, float(at % 7)) for at in range(500)]
    assert "●" not in "".join(rows_of(by_step(many, 60, 10, "x", words.number)))
    assert by_step(many, 10, 10, "x", words.number) == []
    assert by_step(many, 60, 3, "x", words.number) == []
    assert by_step([], 60, 10, "x", words.number) == []


def made(op: str, num_bytes: int, issued: tuple[int, ...], busbw: float | None) -> CollectiveRow:
    arrivals = tuple(Arrival(rank, t_ns, None, "") for rank, t_ns in enumerate(issued))
    wait = sum(max(issued) - t_ns for t_ns in issued)
    skew = max(issued) - min(issued)
    return CollectiveRow(
        "dp", "dp", 0, op, "float32", num_bytes, 1, arrivals, skew, 0, wait, 1, busbw, "matched",
        (), "",
    )  # fmt: skip


def test_collectives_are_summed_per_group_op_and_size_by_what_they_waited() -> None:
    rows = [
        made("all_reduce", 1000, (0, 5), 1.0),
        made("all_reduce", 1000, (0, 7), 3.0),
        made("all_gather", 10, (0, 100), None),
        made("all_reduce", 20, (3, 3), 0.1),
    ]
    first, second, third = sums(rows)
    assert (first.op, first.number, first.wait_ns, first.busbw_gbps) == ("all_gather", 1, 100, None)
    assert (second.op, second.num_bytes, second.number, second.wait_ns, second.skew_ns,
            second.busbw_gbps) == ("all_reduce", 1000, 2, 12, 6, 2.0)  # fmt: skip
    assert (third.num_bytes, third.wait_ns) == (20, 0)
    drawn = rows_of(charts(rows, 120, 14))
    assert len(drawn) == 14 and "● all_reduce" in drawn[1]
    right = [row[60:] for row in drawn[2:]]
    assert "".join(right).count("●") == 3  # bandwidth is known of three
    bar = next(row for row in drawn if row.split()[:1] == ["r1"])
    assert "6 ns" in bar  # the median of 5, 7, 100 and 0


def test_plotext_is_imported_with_the_first_chart_only() -> None:
    code = "import sys, pardbg.ui.app; sys.exit('plotext' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("rows", [5, 6, 9])
@pytest.mark.parametrize("values", [(2.58, 1.2, 1.1), (5.74, 5.2, 4.36), (0.52, 0.42, 0.43)])
def test_a_vertical_axis_has_a_scale_of_ticks_that_are_true(
    rows: int, values: tuple[float, ...]
) -> None:
    """Two ticks at least, at multiples of 0.05; of two in a row no third is made (1.5 and 2 were
    once written over each other as 1.52)."""
    chart = by_step(list(enumerate(values)), 60, rows, "spark", "{:.3g}".format)
    said = [plain(line).partition("┤")[0] for line in chart if "┤" in plain(line)]
    ticks = [float(text) for text in said]
    assert len(ticks) >= 2 and ticks == sorted(set(ticks), reverse=True)
    assert all(abs(tick * 20 - round(tick * 20)) < 1e-9 for tick in ticks)
    assert min(values) <= ticks[-1] < ticks[0] <= max(values)


def test_ticks_of_memory_are_in_the_largest_unit() -> None:
    memory = Scale(words.binary_size, low=0.0, binary=True)
    rows = rows_of(plot([Series(((0, 0), (1, 1800 * 1024)), "spark")], 40, 9, STEPS, memory))
    assert "1 MiB" in "".join(rows) and "1000 KiB" not in "".join(rows)


def test_eight_to_forty_values_are_a_staircase_of_steps_of_one_width() -> None:
    """Ten values, up by one each: ten rows of dots, each as wide as its step, none overlapping."""
    rows = rows_of(by_step([(at, float(at)) for at in range(10)], 62, 13, "x", words.number))
    spans = []
    for row in rows[:-2]:
        at = [place for place, char in enumerate(row) if "⠀" < char <= "⣿"]
        spans += [(at[0], at[-1])] if at else []
    assert len(spans) >= 9, rows
    widths = [last - first for first, last in spans]
    assert max(widths) <= 12 and min(widths) >= 3
    assert all(b[1] <= a[0] + 1 for a, b in pairwise(spans))  # from the top row down: to the left


def test_the_ground_under_a_staircase_is_tinted_and_never_above_it() -> None:
    """Steps 0–4 at 10, 5–9 at 20: under the higher ones all of the 9 rows are tinted but the
    line's own, where it is in its upper half; above the lower ones nothing is."""
    values = [(step, 10.0 if step < 5 else 20.0) for step in range(10)]
    rows = [as_row(row) for row in by_step(values, 60, 12, "loss", words.number)]
    tinted = [[x for x, style in enumerate(row.styles) if "/fill.loss" in style] for row in rows]
    left, right = ([sum(x < 30 for x in own) for own in tinted],
                   [sum(x > 40 for x in own) for own in tinted])  # fmt: skip
    assert left[:8] == [0] * 8 and min(right[1:8]) >= 15 and not any(tinted[10:])
    assert {row.styles[50] for row in rows[1:9]} == {
        f"/fill.loss.{shade}" for shade in range(3)
    }  # fmt: skip
    bare = by_step(values[:5], 60, 12, "loss", words.number)
    assert not any("fill" in run.style for row in bare for run in row), "no line, no ground"


def test_an_axis_without_a_round_value_in_large_steps_has_smaller_ones() -> None:
    """510 to 990: no multiple of 500 lies in it, but 600 and 800 do."""
    rows = rows_of(by_step([(0, 510.0), (1, 990.0)], 40, 8, "loss", "{:.0f}".format))
    assert [row.split()[0] for row in rows if "┤" in row] == ["800", "600"]


def test_a_bare_chart_has_no_numbers_under_it() -> None:
    values = [(at, 1.0) for at in range(5)]
    bare = by_step(values, 60, 10, "x", words.number, bare=True)
    assert len(bare) == 10 and "step" not in "".join(rows_of(bare))
    assert "└" in rows_of(bare)[-1]
