"""Panels: one has the focus, it zooms, and a jump's letters go to panels and rows."""

from __future__ import annotations

import pytest

from pardbg.render.draw.bars import rule
from pardbg.render.draw.cells import Picture, Segment, line, plain
from pardbg.render.draw.regions import Region, focused, framed, lettered, regions, zoomed
from pardbg.render.frame.chrome import jump_hints
from tests.ui import sample
from tests.ui.fakes import app_on, text_of, until


def page(cells: int, lines: int) -> Picture:
    """Two panels beside each other under a line of text, and one below both: the left one takes
    the width, the upper ones two thirds of the lines."""
    upper = lines * 2 // 3 - 1
    left = cells - 12
    body = [line(rule("left", left, "ms"), "  ", rule("right", 10))]
    body += [line("l" * left, "  ", "r" * 10)] * (upper - 1)
    body += [rule("below", cells), *[line("b" * cells)] * (lines - 2 - upper)]
    return Picture((line("verdict"),), tuple(body))


def test_panels_are_found_by_their_rules() -> None:
    drawn = page(40, 16)
    assert regions([*drawn.head, *drawn.body]) == [
        Region("left", 0, 1, 28, 9), Region("right", 30, 1, 10, 9), Region("below", 0, 10, 40, 6),
    ]  # fmt: skip
    assert regions([line(Segment("no rule", "title"), "text")]) == []


def test_the_focused_panel_alone_is_brighter() -> None:
    row = page(40, 16).body[0]
    _, right, _ = regions([row, row, row])[:3]
    styles = [(run.text.strip("─ "), run.style) for run in focused(row, right)]
    assert ("right", "title.on") in styles and ("left", "title") in styles
    assert [plain(focused(row, right)), styles.count(("", "rule.on"))] == [plain(row), 1]


def framed_page(blank: bool) -> list[str]:
    """A panel of 40 cells at column 1 of 100 x 30, with a blank line below it or without."""
    last = line(" ", "" if blank else "x" * 40)
    own = [line(" ", rule("one", 40, "ms")), line(" ", "a" * 40), last]
    lines = [line("verdict"), *own, line(" ", rule("two", 98)), *[line(" ", "b" * 98)] * 24, ()]
    return [plain(row) for row in framed(lines, regions(lines), None, 100)]


def test_a_panel_has_a_border_where_blank_cells_are_around_it() -> None:
    rows = framed_page(blank=True)
    assert rows[1].startswith("╭─ one ──") and rows[1][:42].endswith("─ ms ─╮")
    assert rows[2][:42] == "│" + "a" * 40 + "│" and rows[3][:42] == "╰" + "─" * 40 + "╯"
    assert rows[-1] == "╰" + "─" * 98 + "╯" and max(map(len, rows[1:])) == 100
    assert not set("╭│╰") & set("".join(framed_page(blank=False)[1:4]))
    assert framed_page(blank=False)[3].strip() == "x" * 40, "nothing is painted over"


def test_few_cells_or_lines_have_no_borders() -> None:
    lines = [line(" ", rule("one", 40)), line(" ", "a"), *[()] * 30]
    for cells, rows in ((99, 32), (120, 20)):
        assert framed(lines[:rows], regions(lines), None, cells) == lines[:rows]


def test_a_letter_stands_before_a_title_and_the_line_stays_as_wide() -> None:
    row = page(40, 16).body[0]
    left, right = regions([row])
    made = lettered(lettered(row, right, "s"), left, "a")
    assert plain(made).startswith(" a left ──") and "  s right " in plain(made)
    assert len(plain(made)) == len(plain(row))


@pytest.mark.parametrize(("title", "cells", "lines"), [("left", 40, 15), ("below", 40, 16)])
def test_a_zoomed_panel_fills_the_page(title: str, cells: int, lines: int) -> None:
    found = zoomed(page, title, 40, 16)
    assert found is not None
    picture, size = found
    shown = [*picture.head, *picture.body]
    assert plain(shown[0]).startswith(title) and {len(plain(row)) for row in shown} == {cells}
    assert lines - 2 <= len(shown) <= 16
    assert {plain(row).strip()[0] for row in shown[1:]} == {title[0]}
    again = zoomed(page, title, 40, 16, size)
    assert again == (picture, size)
    assert zoomed(page, "gone", 40, 16) is None


async def test_keys_move_the_focus_zoom_and_jump() -> None:
    app = app_on(sample.snapshot_1f1b())
    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: "where a step goes" in text_of(app), "panels")
        first = app.main.page.panels.focus
        assert first is not None
        await pilot.press("tab")
        second = app.main.page.panels.focus
        assert second is not None and second != first
        await pilot.press("shift+tab")
        assert app.main.page.panels.focus == first
        await pilot.press("z")
        await until(lambda: "findings" not in text_of(app), "one panel alone")
        assert first.title in text_of(app).split("\n")[2]
        await pilot.press("escape")
        await until(lambda: "findings" in text_of(app), "the whole page")
        await pilot.press("apostrophe")
        targets = dict(app.main.page.panels.targets)
        assert targets["a"] == first.title and targets["e"] == 2  # the third row: rank 2
        assert f" a {first.title}" in text_of(app) and " jump " in text_of(app).split("\n")[-1]
        await pilot.press("e")
        assert app.main.shared.rank == 2 and not app.main.page.panels.jumping
        await pilot.press("apostrophe", "S")
        await until(lambda: "findings" not in text_of(app), "the second panel alone")
        assert second.title in text_of(app).split("\n")[2]
        await pilot.press("z", "apostrophe", "6")
        assert app.main.active == "memory" and not app.main.pages["overview"].panels.jumping
        await pilot.press("apostrophe", "escape", "s")
        assert app.main.active == "memory" and not app.main.page.panels.jumping


def test_the_line_of_a_jump_is_whole_at_80_cells() -> None:
    assert plain(jump_hints(80)).rstrip().endswith("esc back")
