"""Lines, rows and charts as strings."""

from __future__ import annotations

from pardbg.render.draw.bars import shares, spark, stacked, thin
from pardbg.render.draw.cells import (
    Row,
    Segment,
    clean,
    clip,
    crop,
    fit,
    left,
    line,
    plain,
    right,
    spread,
    wrap,
)  # fmt: skip


def test_text_from_a_job_cannot_move_the_cursor() -> None:
    assert clean("a\x1b[2Jb\r\nc\td") == "a·[2Jb·c   d"


def test_wide_characters_count_two_cells() -> None:
    assert left("日本", 5) == "日本 "
    assert right("日本", 5) == " 日本"
    assert clip("日本語", 5) == "日本…"
    assert plain(crop((Segment("日本語"),), 3)) == "日…"
    assert plain(crop((Segment("日本語"),), 4)) == "日…"  # half a character cannot be shown


def test_a_line_fits_exactly() -> None:
    row = line(Segment("abc", "x"), "defg")
    assert plain(fit(row, 5)) == "abcd…"
    assert plain(fit((*row, Segment("   ")), 7)) == "abcdefg"  # blanks may go
    assert plain(fit(row, 9)) == "abcdefg  "
    assert plain(spread((Segment("name"),), (Segment("end"),), 10)) == "name   end"
    assert plain(spread((Segment("a long name"),), (Segment("end"),), 8)) == "a lo…end"


def test_words_wrap_and_say_that_more_follows() -> None:
    assert wrap("one two three four", 9) == ["one two", "three", "four"]
    assert wrap("one two three four", 9, 1) == ["one two …"]


def test_a_row_is_painted_and_read_as_runs() -> None:
    row = Row(6)
    row.fill(1, 4, "=", "a")
    row.put(2, "xyz", "b")
    row.put(-1, "12", "c")
    assert row.line() == (
        Segment("2", "c"),
        Segment("=", "a"),
        Segment("xyz", "b"),
        Segment(" ", ""),
    )


def test_a_spark_is_as_wide_as_asked_newest_right() -> None:
    assert spark([0, 7], 4, low=0, high=7) == "  ▁█"
    assert spark([3, 3, 3], 2) == "▄▄"
    assert spark([], 3) == "   "


def test_bars_are_exact_to_half_a_cell() -> None:
    assert thin(0.0, 3) == "   "
    assert thin(0.001, 3) == "╸  "  # anything above nothing shows
    assert thin(0.5, 3) == "━╸ "


def test_shares_sum_to_the_whole() -> None:
    assert shares([0.5, 0.25, 0.25], 10) == [5, 3, 2]
    assert sum(shares([1 / 3, 1 / 3, 1 / 3], 10)) == 10
    assert plain(stacked([(0.5, "#", "a"), (0.25, "=", "b")], 4)) == "##=▁"
