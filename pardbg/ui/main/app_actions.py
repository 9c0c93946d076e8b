"""What the keys about pardbg itself do: the prompt, help, pictures, colours, leaving."""

from __future__ import annotations

from typing import Any

from textual.app import App

from pardbg.ui import screenshot
from pardbg.ui.commands.command_line import CommandError
from pardbg.ui.commands.explain import explain
from pardbg.ui.engine.messages import Arrived, Trouble
from pardbg.ui.main.main_view import Handlers, MainView
from pardbg.ui.screens.panel import help_panel, word_panel


class AppActions:
    """Works on the app as a whole; ``title`` names it in pictures."""

    def __init__(self, view: MainView, app: App[Any], title: str) -> None:
        self._view, self._app, self._title = view, app, title

    def handlers(self) -> Handlers:
        """By action id."""
        return {
            "command": lambda _: self._view.ask(":"),
            "help": self._help,
            "picture": self._picture,
            "theme": self._theme,
            "quit": lambda _: self._app.exit(),
        }

    def _help(self, argument: str) -> None:
        lines = explain(argument) if argument else []
        if argument and not lines:
            raise CommandError(f"no word {argument!r}: ? lists all")
        panel = (
            word_panel(argument, lines) if lines else help_panel(self._view.live, self._view.active)
        )
        self._view.push_panel(panel)

    def _picture(self, argument: str) -> None:
        """What is on the screen now; the file is written on a thread of its own."""
        frame = self._view.shared.frame
        at = frame.snapshot.t_ns - frame.snapshot.t_begin_ns if frame is not None else 0
        self._view.say("")
        svg, page = self._app.export_screenshot(title=self._title), self._view.active

        def write() -> None:
            try:
                path = screenshot.save(svg, self._title, page, at, argument)
            except OSError as error:
                text = f"no picture: {error.filename}: {error.strerror}"
                self._app.post_message(Trouble(text))
            else:
                self._app.post_message(Arrived(f"saved {path}"))

        self._app.run_worker(write, thread=True, exit_on_error=False)

    def _theme(self, argument: str) -> None:
        if argument not in ("dark", "light", "16"):
            raise CommandError("theme dark, theme light or theme 16")
        self._app.theme = f"pardbg-{argument}"
