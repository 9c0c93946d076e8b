"""``pardbg learn``: lessons on real runs, recorded here."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

from pardbg.cli import common
from pardbg.errors import UserError
from pardbg.words import whole

if TYPE_CHECKING:
    from pardbg.lab.lessons.lesson_table import Lesson
    from pardbg.render.frame.lesson import LessonPage
    from pardbg.ui.commands.startup import History
    from pardbg.ui.main.lesson_screen import Course

CHECKOUT: Final = Path(__file__).parents[3] / "sessions"
"""Folder of recorded runs, if pardbg runs from its repository."""
TEXT_CELLS: Final = 80


def _lessons(_ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    from pardbg.lab.lessons.lesson_table import lessons

    return [CompletionItem(one.name, help=one.title) for one in lessons()
            if one.name.lower().startswith(typed.lower())]  # fmt: skip


@click.command()
@click.argument("lesson", required=False, shell_complete=_lessons)
@click.option("--list", "list_", is_flag=True, help="List the lessons, and what you have answered.")
def learn(lesson: str | None, list_: bool) -> None:
    """Learn how parallel training runs: LESSON (a number or name), by default your next one.

    Each lesson steps through real runs, recorded here the first time they are needed. Without a
    terminal it is printed.
    """
    from pardbg.lab.lessons.lesson_table import lessons

    answered = _answered()
    if list_:
        for (name, done, ideas), one in zip(progress(answered), lessons(), strict=True):
            common.echo(f"{find(name) + 1:>2}  {name:<5} {one.title:<62} {done}/{ideas}")
        return
    place: tuple[int, int] | None
    place = next_place(answered, None if lesson is None else find(lesson))
    if not common.has_terminal():
        for page in worked_pages(lessons()[place[0]]):
            common.echo(_text(page))
        return
    common.talk(f"opening lesson {place[0] + 1}, {lessons()[place[0]].title} …")
    try:
        while place is not None:
            place = _show(*place, answered)
    finally:
        from pardbg.ui.terminal_driver import TerminalDriver

        TerminalDriver.leave()


def find(text: str) -> int:
    """Return the index of a lesson by number, name or one of its runs. Raises UserError."""
    from pardbg.lab.lessons.lesson_table import lessons

    wanted, names = text.lower().replace("-", ""), [one.name for one in lessons()]
    for known in ([{one.name} for one in lessons()],
                  [{idea.recording for idea in one.ideas} for one in lessons()]):  # fmt: skip
        for at, all_ in enumerate(known):
            if wanted in {name.lower().replace("-", "") for name in all_}:
                return at
    number = whole(text, len(names))
    if not number:
        raise UserError(f"no lesson {text!r}: 1 to {len(names)}, or {', '.join(names)}")
    return number - 1


# ------------------------------------------------------------------------------ progress


def _answered() -> History:
    """Return the given answers: a line per idea in ``<user state>/pardbg/lessons``."""
    from pardbg.cli.headless import history_path
    from pardbg.ui.commands.startup import History

    found = History(history_path().with_name("lessons"))
    found.load()
    return found


def progress(answered: History | None = None) -> list[tuple[str, int, int]]:
    """Return (name, answered, ideas) of every lesson."""
    from pardbg.lab.lessons.lesson_table import lessons
    from pardbg.ui.commands.startup import answered_of

    counts = [(one.name, len(one.ideas)) for one in lessons()]
    return answered_of(counts, _answered() if answered is None else answered)


def listed() -> list[tuple[str, int, int]]:
    """Return (title, answered, ideas) of every lesson, for the start screen."""
    from pardbg.lab.lessons.lesson_table import lessons

    return [(one.title, done, ideas)
            for one, (_, done, ideas) in zip(lessons(), progress(), strict=True)]  # fmt: skip


def next_place(answered: History, lesson: int | None = None) -> tuple[int, int]:
    """Return the first (lesson, idea) without an answer, of all lessons or of one; the first of all
    if every idea has an answer."""
    places = [(at, idea) for at, (_, _, ideas) in enumerate(progress(answered))
              for idea in range(ideas) if lesson in (None, at)]  # fmt: skip
    names = [name for name, _, _ in progress(answered)]
    open_ = (one for one in places if f"{names[one[0]]} {one[1]}" not in answered.lines)
    return next(open_, places[0])


# ------------------------------------------------------------------------------ recordings


def recording(name: str) -> Path:
    """Return the recording of a run, made by ``pardbg demo`` if there is none. Raises UserError."""
    import platformdirs

    from pardbg.lab.lessons.lesson_table import demo_arguments

    folder = platformdirs.user_data_path("pardbg") / "lessons"
    path = folder / f"{name}.mcap"
    if path.is_file():
        return path
    if (CHECKOUT / path.name).is_file():
        return CHECKOUT / path.name
    command = ["demo", *demo_arguments(name)]
    common.talk(f"recording `pardbg {' '.join(command)}`, once: half a minute")
    folder.mkdir(parents=True, exist_ok=True)
    with common.new_file(path, force=True) as fresh:
        done = subprocess.run(
            [sys.executable, "-m", "pardbg", *command, "-o", str(fresh)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        if not fresh.stat().st_size:
            last = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
            raise UserError(f"the lesson's run cannot be recorded: {last}")
    return path


def worked_pages(lesson: Lesson) -> tuple[LessonPage, ...]:
    """Return a lesson's pages with the numbers of its runs. Raises UserError."""
    from pardbg.analysis.answers.report import report
    from pardbg.lab.lessons.figures import Unknown
    from pardbg.lab.lessons.worked import pages
    from pardbg.session.reader import load

    try:
        return pages(lesson, {name: report(load(recording(name))) for name in lesson.recordings})
    except Unknown as error:
        raise UserError(f"lesson {lesson.name}: {error}; delete its recording to make it anew"
                        ) from None  # fmt: skip


# ------------------------------------------------------------------------------ showing


def _show(at: int, idea: int, answered: History) -> tuple[int, int] | None:
    """Show a lesson from an idea on; return (lesson, idea) to go on with, None: it was left."""
    from pardbg.cli.rc import own_rc
    from pardbg.lab.lessons.lesson_table import lessons
    from pardbg.session.navigation.replay import ReplayClock
    from pardbg.session.reader import open_session
    from pardbg.ui.app import PardbgApp
    from pardbg.ui.main.lesson_screen import Course

    counts = [(one.name, len(one.ideas)) for one in lessons()]
    course: Course = Course(counts, worked_pages(lessons()[at]), idea, answered)
    path = recording(course.page.recording)
    with closing(open_session(path)) as source:
        PardbgApp(
            source, None, title=path.name, replay=ReplayClock(), course=course, rc=own_rc()
        ).run()
    return course.wanted


def _text(page: LessonPage) -> str:
    from pardbg.render.draw.cells import plain
    from pardbg.render.frame.lesson import idea_picture, question_lines

    lines = (*idea_picture(page, TEXT_CELLS).body, (), *question_lines(page, None, TEXT_CELLS))
    return "\n".join(plain(line).rstrip() for line in lines)


COMMANDS = (learn,)
