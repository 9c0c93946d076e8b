"""The main screen with a lesson around its pages: a run to step through, and explanations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal

from pardbg.render.draw.signs import keys_text
from pardbg.render.frame.chrome import hints
from pardbg.render.frame.lesson import HOW, LETTERS, LessonPage, idea_picture, question_lines, strip
from pardbg.ui.commands.startup import History, answered_of
from pardbg.ui.engine.feed import Frame
from pardbg.ui.main.main_screen import MainScreen
from pardbg.ui.screens.pipeline import PipelinePage
from pardbg.ui.terminal_driver import TerminalApp
from pardbg.ui.widgets.lines import Lines, PicturePane

BESIDE = 110
"""Columns from which on the idea is beside the run; else ``i`` switches between them."""


class Course:
    """A lesson's pages, the current page, and the answers given so far."""

    def __init__(
        self, lessons: Sequence[tuple[str, int]], pages: Sequence[LessonPage], at: int,
        answered: History,
    ) -> None:  # fmt: skip
        """Set up; ``lessons``: (name, number of ideas) of all, ``at``: the page to begin with."""
        self.pages, self.at, self.answered = tuple(pages), at, answered
        self._lessons = tuple(lessons)
        self.wanted: tuple[int, int] | None = None
        """(lesson, idea) in another recording with which to continue."""

    @property
    def page(self) -> LessonPage:
        return self.pages[self.at]

    @property
    def number(self) -> int:
        """Return the lesson's number from 0."""
        return [name for name, _ in self._lessons].index(self.page.lesson)

    def done(self) -> list[tuple[str, int, int]]:
        """Return (name, answered, ideas) of every lesson."""
        return answered_of(self._lessons, self.answered)

    def go(self, by: int) -> bool:
        """Go on or back by a page; False: that page needs another recording, or does not exist."""
        recording, to = self.page.recording, self.at + by
        if 0 <= to < len(self.pages):
            if self.pages[to].recording == recording:
                self.at = to
                return True
            self.wanted = self.number, to
        elif 0 <= self.number + by < len(self._lessons):
            other = self.number + by
            self.wanted = other, 0 if by > 0 else self._lessons[other][1] - 1
        return False


class _Idea(PicturePane):
    @property
    def overflows(self) -> bool:
        """Return whether the idea's text is longer than the visible part."""
        return self.size.height > 0 and len(self._picture.body) > self.room

    def redraw(self) -> None:
        screen = self.screen if self.is_attached else None  # it may be gone as the app ends
        if isinstance(screen, LessonScreen):
            page = screen.course.page
            self.border_title = page.title
            self.border_subtitle = f"{page.number + 1} of {page.of}"
            framed = not screen.has_class("narrow")
            self.show_picture(idea_picture(page, self.size.width, framed))


class LessonScreen(MainScreen):
    """Main screen of a lesson: all keys of a recording work; a, b, c answer, ← and → turn pages."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(letter, f"answer({at})") for at, letter in enumerate(LETTERS[:3])),
        Binding("right", "turn(1)"), Binding("left", "turn(-1)"), Binding("i", "read"),
        Binding("t", "press('full_stop')"),
    ]  # fmt: skip

    def __init__(
        self, course: Course, keep: Callable[[str], None], *args: Any, **more: Any
    ) -> None:
        """Set up with the main screen's arguments; ``keep`` stores the answers."""
        super().__init__(*args, **more)
        self.course, self._keep_answer = course, keep
        self._chosen: int | None = None
        self._opened: LessonPage | None = None
        """The page whose moment was last opened in the run."""
        self._there = False
        """Whether the first page's moment is on the screen; until then the run is being read."""
        self._active, self.shared.loading = course.page.screen, "reading the recording …"
        self._lessons, self._question = Lines(id="lessons"), Lines(id="question")
        self._question.border_title, self._question.border_subtitle = "question", HOW
        self._idea = _Idea(id="idea")
        self.add_class("reading")  # where there is room for one, the idea comes first

    def _middle(self) -> ComposeResult:
        yield self._lessons
        with Horizontal(id="lesson"):
            yield self._switcher
            yield self._idea
        yield self._question

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width < BESIDE, "narrow")
        super().on_resize(event)

    def take_frame(self, frame: Frame) -> None:
        if not self._switcher.children:  # a short recording is read before the pages are there
            self.call_later(self.take_frame, frame)
            return
        opened = frame.finished and self._opened is not self.course.page
        self._there = self._there or (
            self._opened is not None and (frame.snapshot.t_ns > frame.begin_ns)
        )
        if self._there:
            super().take_frame(frame)
        elif not frame.finished:
            self.take_loading(frame.loaded)
        if opened:
            self._opened = self.course.page
            self._open(frame)

    def _open(self, frame: Frame) -> None:
        """Show the page, and the run at the idea's moment."""
        page = self.course.page
        shown = self.pages["pipeline"]
        assert isinstance(shown, PipelinePage)
        shown.by_ticks(page.ticks, frame)
        self.handlers["unit"](page.unit)
        self.handlers["goto"](page.goto)
        self.show_page(page.screen)  # to a finding it is that of findings
        if page.ticks:
            self.handlers["following"]("")  # the step's first tick
        self.say("")
        self.paint()

    def paint(self) -> None:
        super().paint()
        if not (self._ready and self._cells) or self._small:
            return
        page, cells = self.course.page, self._cells
        self._lessons.show(strip(self.course.done(), self.course.number, cells))
        edges = 0 if self.has_class("narrow") else 2
        question = question_lines(page, self._chosen, cells - edges, edges > 0)
        self._question.styles.height = len(question) + edges
        self._question.show(question)
        self._idea.redraw()
        if not self._prompting:
            look = [("i", "run or idea")] if self.has_class("narrow") else []
            more = [("pgdn", "more")] if self._idea.overflows else []
            shown = [("a b c", "answer"), ("t", page.unit), (",", "back"),
                     (keys_text("← →"), "idea"), *look, *more, ("space", "play"),
                     ("1–9", "pages"), ("?", "help"), ("q", "leave")]  # fmt: skip
            self._bars.hints.show((hints(shown, cells),))

    def action_answer(self, choice: int) -> None:
        page = self.course.page
        if choice < len(page.choices):
            self._chosen = choice
            if page.choices[choice][1] and page.key not in self.course.answered.lines:
                self.course.answered.add(page.key)
                self._keep_answer(page.key)
            self.paint()

    def action_turn(self, by: int) -> None:
        """Go to the next or previous page; the app ends if the page needs another recording."""
        if self.course.go(by):
            self._chosen = None
            self._idea.scroll_rows(-self._idea.top)
            self.add_class("reading")
            if self.shared.frame is not None:
                self._opened = self.course.page
                self._open(self.shared.frame)
        elif self.course.wanted is not None:
            lesson, idea = self.course.wanted
            self.say(f"opening lesson {lesson + 1}, idea {idea + 1} …")
            self.call_after_refresh(self._leave)  # the words stand there while it is read
        else:
            self.say("that was the last idea" if by > 0 else "this is the first idea")

    def _leave(self) -> None:
        if isinstance(self.app, TerminalApp):
            self.app.stays = True
        self.app.exit()

    def action_press(self, key: str) -> None:
        """Scroll the idea if it is longer than its room; else handle the key as usual."""
        by = {"pageup": -1, "pagedown": 1}.get(key, 0)
        if by and self._idea.overflows:
            self._idea.scroll_rows(by * max(1, self._idea.room - 1))
        else:
            super().action_press(key)

    def action_read(self) -> None:
        """Switch between run and idea, if there is room for only one of them."""
        self.toggle_class("reading")
