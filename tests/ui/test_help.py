"""Footer and help are the screen's own: its keys come first, and help can be searched."""

from __future__ import annotations

import pytest

from pardbg.ui.commands.actions import ACTIONS, OWN, SCREENS, explain, footer, wrapped
from pardbg.ui.screens.panel import Panel
from pardbg.ui.widgets.lines import PicturePane
from tests.ui import sample
from tests.ui.fakes import FakePort, FakeSource, app_on, shows, text_of, until
from tests.ui.recorded import type_


def test_each_screen_has_its_own_and_they_are_there() -> None:
    assert OWN.keys() == {name for _, name, _ in SCREENS}
    known = {action.id for action in ACTIONS}
    assert {id_ for ids in OWN.values() for id_ in ids} <= known


def test_a_footer_offers_nothing_twice_and_begins_with_pause() -> None:
    for screen in OWN:
        for live, first in ((True, "toggle"), (False, "play")):
            offered = [action.id for action, _ in footer(screen, live)]
            assert offered[0] == first and len(offered) == len(set(offered))
            assert offered[-2:] == ["help", "quit"]


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_footer_changes_with_the_screen(size: tuple[int, int]) -> None:
    app = app_on(sample.snapshot_1f1b())
    async with app.run_test(size=size) as pilot:
        await shows(app, "enter the rank")
        await pilot.press("2")
        await shows(app, "g ticks")
        assert "enter the rank" not in text_of(app)
        await pilot.press("3")
        await shows(app, "+ closer")


async def test_what_a_job_that_ended_cannot_do_is_not_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = app_on(sample.snapshot_1f1b(), FakePort())
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(app, "space pause")
        monkeypatch.setattr(FakeSource, "finished", True)
        await until(lambda: "pause" not in text_of(app).split("\n")[-1], "nothing to pause")
        await pilot.press("7")
        await shows(app, "7 Debug")
        assert "? help" in text_of(app)
        assert not {"s step", "t tick", "w stacks"} & set(text_of(app).split("\n")[-1].split("  "))
        assert "space holds" not in text_of(app) and "w asks" not in text_of(app)


async def test_help_begins_with_the_screens_own_keys() -> None:
    app = app_on(sample.snapshot_1f1b(), start="pipeline")
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(app, "implied 27.3%")
        await pilot.press("question_mark")
        await shows(app, "This screen: Pipeline")
        text = text_of(app)
        rows = [row for row in text.split("\n") if "This screen: Pipeline" in row]
        assert len(rows) == 1 and rows[0].count("──") >= 2, "two columns"
        assert text.index("Ticks instead of") < text.index("Control (live)") or (
            text.index("This screen") < text.index("Time ")
        )


async def test_help_is_searched() -> None:
    app = app_on(sample.snapshot_1f1b())
    async with app.run_test(size=(100, 30)) as pilot:
        await shows(app, "● live")
        await pilot.press("question_mark")
        await shows(app, "This screen: Overview")
        await pilot.press("slash", *"bookmark")
        await until(lambda: "Save this screen" not in text_of(app), "the others are gone")
        await shows(app, "Bookmark this moment")
        await pilot.press(*"xyz")
        await shows(app, "nothing fits")
        await pilot.press("escape")
        await shows(app, "● live")
        await until(lambda: "pardbg help" not in text_of(app), "help closed")


@pytest.mark.parametrize("word", ["take", "break"])
async def test_a_panel_about_a_word_is_as_tall_as_what_it_says(word: str) -> None:
    """A long text leaves a tenth of the screen, and scrolls."""
    app = app_on(sample.snapshot_1f1b())
    async with app.run_test(size=(100, 20)) as pilot:
        await type_(pilot, f"help {word}")
        await until(lambda: isinstance(app.screen, Panel), "the panel")
        box, pane = app.screen.query_one("#panel"), app.screen.query_one(PicturePane)
        rows = len(wrapped(explain(word), pane.size.width - 1))
        await until(lambda: pane.size.height == min(rows, box.size.height), "its height")
        assert box.outer_size.height == min(rows + 3, 18)
