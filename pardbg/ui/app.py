"""The app: joins engine, controller and main screen, for live runs and replay alike."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual import events
from textual.command import Provider

from pardbg.events.commands import ControlPort
from pardbg.render.draw.plots import preload
from pardbg.session.bookmarks import add_bookmarks
from pardbg.session.navigation.replay import ReplayClock
from pardbg.session.reader import SessionError
from pardbg.store.history import Bookmark
from pardbg.store.source import Source
from pardbg.store.store import Store
from pardbg.ui.commands.startup import History, Rc, run_rc, split_rc
from pardbg.ui.engine.controller import Controller
from pardbg.ui.engine.cursor import TimeCursor
from pardbg.ui.engine.engine import Engine
from pardbg.ui.engine.feed import Analysis, SecondRecording
from pardbg.ui.engine.messages import Answered, Arrived, FrameReady, Loading, Trouble
from pardbg.ui.main.command_palette import Commands, Palette
from pardbg.ui.main.lesson_screen import Course, LessonScreen
from pardbg.ui.main.main_screen import MainScreen
from pardbg.ui.terminal_driver import TerminalApp
from pardbg.ui.widgets.prompt import Prompt

ARRIVED_S = 3.0
"""Time for which the text of an arrival is shown, in the place of the time bar."""


class PardbgApp(TerminalApp):
    """``PardbgApp(source, control, title=…).run()`` until the user leaves; the job goes on."""

    ENABLE_COMMAND_PALETTE = True
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {Commands}

    def __init__(
        self,
        source: Source,
        control: ControlPort | None,
        *,
        title: str,
        start_screen: str = "overview",
        replay: ReplayClock | None = None,
        store: Any = None,
        analysis: Analysis | None = None,
        second: tuple[str, Source] | None = None,
        rc: Rc | None = None,
        history: Path | None = None,
        course: Course | None = None,
    ) -> None:
        """Set up the app.

        ``second``: name and source of a recording to show under the first, step by step. ``rc``:
        commands to begin with. ``history``: file of the typed lines. ``course``: a lesson that the
        recording is part of.
        """
        super().__init__()
        live = replay is None and source.live
        self.cursor = TimeCursor(None if live else replay or ReplayClock())
        self.cursor.moved = course is not None  # a lesson chooses the moment
        port = control if live else None
        self.controller = Controller(port, self._in_thread, self.post_message, live)
        self._store = store if store is not None else Store(live=live)
        self._source = source
        self._keeping = threading.Lock()
        """Lock held while the file is copied: only one copy at a time."""
        self.engine = Engine(
            source, self._store, analysis or Analysis(), self.cursor, self.post_message,
            SecondRecording(*second, Store()) if second is not None else None,
        )  # fmt: skip
        self._rc, self._history = rc or Rc(), History(history)
        self._history.load()
        self.kept_in = self._rc.own
        """The user's file, where settings are kept."""
        parts = (self, title, self.cursor, self.controller, self.engine, self._mark, start_screen,
                 self._history)  # fmt: skip
        self.main = MainScreen(*parts)
        if course is not None:
            keep = course.answered.keep
            self.main = LessonScreen(
                course, lambda key: self._in_thread(partial(keep, key)), *parts
            )

    def action_command_palette(self) -> None:
        if not any(isinstance(screen, Palette) for screen in self.screen_stack):
            self.push_screen(Palette(id="--command-palette"))

    def get_default_screen(self) -> MainScreen:
        return self.main

    def on_mount(self) -> None:
        self._in_thread(preload)  # while the first records are read
        self.take_colours()
        rest = self._settle()
        self.engine.want(self.main.page.wanted())
        self.engine.start()
        if rest.lines or rest.problems:
            self.call_after_refresh(lambda: self._in_thread(partial(self._begin_with, rest)))

    def _settle(self) -> Rc:
        """Take the settings of the ``.pardbgrc`` files; return what is left of them to do."""
        settings, rest = split_rc(self._rc, self.controller.present)
        skipped = {"theme"} if self.has_few_colours else set()
        skipped |= {"screens"} if isinstance(self.main, LessonScreen) else set()
        wrong = [
            f"{place}: {text}" for place, found in settings
            if not {found.action.id, found.action.group} & skipped
            and (text := self.main.attempt(found.action, found.argument))
        ]  # fmt: skip
        return replace(rest, problems=(*rest.problems, *wrong))

    def _begin_with(self, rc: Rc) -> None:
        """Run the commands of the ``.pardbgrc`` files."""
        run_rc(
            rc, self.controller.ask,
            lambda found: self.call_from_thread(self.main.attempt, found.action, found.argument),
            lambda text, bad: self.call_from_thread(self.main.control.show_result, text, bad),
        )  # fmt: skip

    def on_prompt_kept(self, event: Prompt.Kept) -> None:
        self._in_thread(lambda: self._history.keep(event.line))

    def on_unmount(self) -> None:
        self.controller.farewell()
        self.engine.stop()

    # ---- to the main screen

    def on_key(self, event: events.Key) -> None:
        if self.screen_stack[-1:] == [self.main] and self.main.typed_ahead(event):
            event.stop()
            event.prevent_default()

    # What comes from threads while the app closes finds no screen.

    def on_frame_ready(self, event: FrameReady) -> None:
        if self.screen_stack:
            self.main.take_frame(event.frame)

    def on_loading(self, event: Loading) -> None:
        if self.screen_stack:
            self.main.take_loading(event.share)

    def on_arrived(self, event: Arrived) -> None:
        if not self.screen_stack:
            return
        if event.rank is not None:
            self.main.shared.rank = event.rank
        self.main.say(event.text, seconds=ARRIVED_S)
        self.main.control.answer(event.text, "dim")

    def on_trouble(self, event: Trouble) -> None:
        if not self.screen_stack:
            return
        self.main.say(event.text, "bad")
        self.main.control.answer(event.text, "bad")

    def on_answered(self, event: Answered) -> None:
        if self.screen_stack:
            self.main.control.on_answered(event)

    # ---- from the main screen

    def _mark(self, mark: Bookmark) -> None:
        """Keep a bookmark in the run's recording: through the hub, or in the opened file."""
        if self.cursor.replay:
            self.engine.go(mark)
            self._in_thread(lambda: self._keep(mark))
        else:
            self.main.control.refused(self.controller.mark(mark.t_ns, mark.text))

    def _keep(self, mark: Bookmark) -> None:
        path, end_ns = getattr(self._source, "path", None), self._store.end_ns
        if path is None:
            return
        try:
            with self._keeping:
                add_bookmarks(path, [mark], end_ns)
        except SessionError as error:
            self.post_message(Trouble(str(error)))
        else:
            what = f"bookmark kept in {path.name}: {mark.text}" if mark.text else "bookmark removed"
            self.post_message(Arrived(what))

    def _in_thread(self, work: Any) -> None:
        self.run_worker(work, thread=True, exit_on_error=False)
