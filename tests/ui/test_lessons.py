"""``pardbg learn`` on recorded runs: pages turn, runs step, right answers are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

import pardbg.cli.learn as command
from pardbg.errors import UserError
from pardbg.lab.lessons.lesson_table import lessons
from pardbg.render.frame.lesson import LETTERS, question_lines
from pardbg.session.navigation.replay import ReplayClock
from pardbg.session.reader import open_session
from pardbg.ui.app import PardbgApp
from pardbg.ui.commands.startup import History
from pardbg.ui.main.lesson_screen import Course, LessonScreen
from pardbg.ui.start_app import StartApp
from tests.ui.fakes import until
from tests.ui.recorded import SESSIONS, read, settled
from tests.ui.test_start import text_of

COUNTS = [(one.name, len(one.ideas)) for one in lessons()]


@asynccontextmanager
async def opened(
    lesson: int, idea: int, size: tuple[int, int], kept: Path | None = None
) -> AsyncIterator[tuple[LessonScreen, Pilot[None]]]:
    course = Course(COUNTS, command.worked_pages(lessons()[lesson]), idea, History(kept))
    path = SESSIONS / f"{course.page.recording}.mcap"
    with closing(open_session(path)) as source:
        app = PardbgApp(source, None, title=path.name, replay=ReplayClock(), course=course)
        async with app.run_test(size=size) as pilot:
            await read(app)
            await settled(app)
            assert isinstance(app.main, LessonScreen)
            yield app.main, pilot


def text_on(screen: Any) -> str:
    return "\n".join(strip.text for strip in screen._compositor.render_strips(screen.size))


def right(screen: LessonScreen) -> str:
    return LETTERS[[ok for _, ok in screen.course.page.choices].index(True)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("lesson", range(len(COUNTS)), ids=[name for name, _ in COUNTS])
async def test_a_lesson_is_played(lesson: int, tmp_path: Path) -> None:
    """Each of its runs opens at its page; a wrong answer is not kept, a right one is."""
    kept, place = tmp_path / "lessons", (lesson, 0)
    name, ideas = COUNTS[lesson]
    while place[0] == lesson and f"{name} {ideas - 1}" not in kept_lines(kept):
        async with opened(*place, (120, 40), kept) as (screen, pilot):
            while screen.course.wanted is None:
                page = screen.course.page
                await until(lambda p=page: screen.active == p.screen, page.title)  # type: ignore[misc]
                for worked in page.worked:
                    assert worked.formula in text_on(screen)
                await pilot.press(next(letter for letter in "abc" if letter != right(screen)))
                assert page.key not in kept_lines(kept)
                await pilot.press(right(screen))
                await until(lambda p=page: p.key in kept_lines(kept), "kept")  # type: ignore[misc]
                if page.number + 1 == ideas and lesson + 1 == len(COUNTS):
                    break
                await pilot.press("right")
                await settled(screen.app)  # type: ignore[arg-type]
            place = screen.course.wanted or place
    assert kept_lines(kept) == [f"{name} {at}" for at in range(ideas)]


def kept_lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def test_the_run_steps_by_the_lessons_unit() -> None:
    """1F1B: opens at a step's first tick, and goes on from there."""
    async with opened(4, 0, (120, 40)) as (screen, pilot):

        async def tick() -> tuple[int | None, int]:
            await settled(screen.app)  # type: ignore[arg-type]
            assert screen.shared.frame is not None and screen.shared.frame.ticks is not None
            grid = screen.shared.frame.ticks.grids[0]
            return screen.shared.frame.snapshot.step, grid.tick

        found = [await tick()]
        for _ in range(2):
            await pilot.press("t")
            found.append(await tick())
        assert found == [(4, 1), (4, 2), (4, 3)]


@pytest.mark.parametrize("size", [(80, 24), (60, 15)])
async def test_where_there_is_room_for_one_i_switches(size: tuple[int, int]) -> None:
    async with opened(7, 0, size) as (screen, pilot):
        formula = screen.course.page.worked[0].formula
        assert (formula in text_on(screen)) or size == (60, 15)
        assert screen.course.page.question[:20] in text_on(screen)
        await pilot.press("i")
        await until(
            lambda: formula not in text_on(screen) and "r0" in text_on(screen), "the run instead"
        )


async def test_an_idea_that_is_longer_than_its_place_scrolls() -> None:
    """At 80 x 24 the first idea's note stands below: page down brings it, page up goes back."""
    async with opened(0, 0, (80, 24)) as (screen, pilot):
        page = screen.course.page
        first, last = page.text[0][:30], page.worked[0].note[-12:]
        assert first in text_on(screen) and last not in text_on(screen)
        await pilot.press("pagedown")
        await until(lambda: last in text_on(screen), "the note")
        await pilot.press("pageup")
        await until(lambda: first in text_on(screen), "the begin")


async def test_until_a_runs_moment_is_there_the_page_says_that_it_is_read() -> None:
    """No frame of the begin, in which nothing has run, comes in between."""
    course = Course(COUNTS, command.worked_pages(lessons()[7]), 0, History(None))
    path = SESSIONS / f"{course.page.recording}.mcap"
    with closing(open_session(path)) as source:
        app = PardbgApp(source, None, title=path.name, replay=ReplayClock(), course=course)
        taken: list[int | None] = []
        screen = app.main
        real = screen.page.redraw

        def redraw() -> None:
            frame = screen.shared.frame
            taken.append(None if frame is None else frame.snapshot.t_ns - frame.begin_ns)
            real()

        async with app.run_test(size=(120, 40)):
            screen.pages[course.page.screen].redraw = redraw  # type: ignore[method-assign]
            await read(app)
            await settled(app)
            assert screen.active == course.page.screen
        assert taken and 0 not in taken
        assert screen.shared.frame is not None and screen.shared.frame.snapshot.step == 4


async def test_rows_that_the_ticks_leave_show_the_step_by_time() -> None:
    """At 200 x 60 both are there, at 120 x 40 the ticks alone."""
    for size, both in (((200, 60), True), ((120, 40), False)):
        async with opened(4, 0, size) as (screen, _):
            await until(lambda: "1F1B: start" in text_on(screen), "the idea")
            frame = screen.shared.frame
            assert frame is not None and frame.ticks is not None
            of = f"of {frame.ticks.grids[0].num_ticks}"
            await until(lambda s=screen, of=of: of in text_on(s), "the ticks")  # type: ignore[misc]
            assert ("excess" in text_on(screen)) == both


async def test_the_last_idea_has_none_after_it() -> None:
    last = len(COUNTS) - 1
    async with opened(last, COUNTS[last][1] - 1, (120, 40)) as (screen, pilot):
        before = screen._bars.message
        await pilot.press("right")
        assert screen.course.wanted is None and screen._bars.message not in (before, ("", "dim"))


async def test_going_back_over_a_lessons_begin_leads_to_the_end_of_the_one_before() -> None:
    async with opened(1, 0, (120, 40)) as (screen, pilot):
        await pilot.press("left")
        assert screen.course.wanted == (0, COUNTS[0][1] - 1)


async def test_the_first_lesson_has_none_before_it() -> None:
    async with opened(0, 0, (120, 40)) as (screen, pilot):
        await pilot.press("left")
        assert screen.course.wanted is None and screen.course.at == 0


def test_no_choice_is_cut_at_80_cells() -> None:
    for lesson in lessons():
        for page in command.worked_pages(lesson):
            lines = question_lines(page, None, 80)
            assert not any("…" in part.text for line in lines for part in line), page.question


def test_lessons_are_found_by_number_and_name() -> None:
    assert [command.find(text) for text in ("1", "12", "zero", "3-D")] == [0, 11, 7, 10]
    assert [command.find(text) for text in ("3d", "GPipe", "interleaved")] == [10, 3, 5]
    for wrong in ("0", "13", "x", "-"):
        with pytest.raises(UserError):
            command.find(wrong)


def test_the_next_lesson_is_the_first_with_an_open_question() -> None:
    answered = History(None)
    assert command.next_place(answered) == (0, 0)
    answered.lines = [f"{name} {at}" for name, ideas in COUNTS[:2] for at in range(ideas)]
    answered.lines += [f"{COUNTS[2][0]} 0"]
    assert command.next_place(answered) == (2, 1)
    assert command.next_place(answered, 3) == (3, 0)
    assert command.progress(answered)[0] == ("DP", 3, 3)
    answered.lines = [f"{name} {at}" for name, ideas in COUNTS for at in range(ideas)]
    assert command.next_place(answered) == (0, 0)
    assert command.next_place(answered, 3) == (3, 0)


def test_what_cannot_be_recorded_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A name that `pardbg demo` does not know fails as the real thing does."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(UserError, match="no-such-recipe"):
        command.recording("no-such-recipe")
    assert list(tmp_path.rglob("*.mcap")) == []


async def test_the_start_screen_leads_to_the_next_lesson(tmp_path: Path) -> None:
    app = StartApp(list, str(tmp_path), "", [("One", 2, 2), ("Two", 0, 3)])
    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: "✓  1  One" in text_of(app), text_of(app))
        assert "▸  2  Two" in text_of(app)
        await pilot.press("l")
    assert app.chosen == ("learn", "")


async def test_a_lesson_about_a_hang_opens_where_it_is_found() -> None:
    async with opened(len(COUNTS) - 1, 0, (120, 40)) as (screen, _):
        await until(lambda: screen.shared.frame.snapshot.hang is not None, "the hang")  # type: ignore[union-attr]
        assert screen.active == screen.course.page.screen
        screen._open(screen.shared.frame)  # type: ignore[arg-type]
        assert screen.active == screen.course.page.screen, "also where the findings are known"
