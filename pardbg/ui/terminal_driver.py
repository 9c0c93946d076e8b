"""The terminal that an app draws on: also with stderr in a file, and in ASCII if the locale has no
UTF-8. (Textual's own driver always writes to stderr.)"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, ClassVar, Final

from textual import constants
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter

from pardbg.errors import UserError
from pardbg.render.draw.signs import ERRORS, has_utf8
from pardbg.terminals import any_closed
from pardbg.ui.palette import NAMES, THEMES, Nearest


class TerminalApp(App[None]):
    """Base of pardbg's apps: palettes and driver."""

    CSS_PATH = str(Path(__file__).with_name("pardbg.tcss"))  # apps of other folders use it, too
    TITLE = "pardbg"
    ENABLE_COMMAND_PALETTE = False
    stays = False
    """Whether the app's last picture stays on the terminal until the next app draws."""

    def __init__(self) -> None:
        # Whoever asks Textual for another driver gets that one.
        super().__init__(driver_class=None if constants.DRIVER else TerminalDriver)

    def run(self, *args: Any, **more: Any) -> Any:
        """Run, and end the driver's input thread however the app ended: on a terminal that is gone
        its clean-up fails before that, and the thread would keep the process, busy, for ever."""
        try:
            return super().run(*args, **more)
        finally:
            if isinstance(self._driver, TerminalDriver):
                self._driver.exit_event.set()

    def on_mount(self) -> None:
        self.set_interval(1.0, self._look_for_hang_up)

    def _look_for_hang_up(self) -> None:
        """End as after SIGHUP once the terminal was closed."""
        known = self._driver.terminals if isinstance(self._driver, TerminalDriver) else []
        if not any_closed(known):
            return
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            self.exit()
        else:
            os.kill(os.getpid(), signal.SIGHUP)

    def tell_terminal(self, text: str) -> None:
        """Write a sequence that draws nothing to the terminal: a bell, a notification."""
        if self._driver is not None and not self.is_headless:
            self._driver.write(text)

    def get_line_filters(self) -> Sequence[LineFilter]:
        few = [_NEAREST] if self.console.color_system == "256" else []
        return [*super().get_line_filters(), *few]

    def take_colours(self) -> None:
        """Choose the palette that the terminal can show."""
        for theme in THEMES:
            self.register_theme(theme)
        # With NO_COLOR Textual makes greys, of the terminal's own colours black on black.
        self.theme = "pardbg-16" if self.has_few_colours and not self.no_color else "pardbg-dark"

    @property
    def has_few_colours(self) -> bool:
        """Return whether the terminal shows 16 colours."""
        return self.console.color_system == "standard" and not self.is_headless

    def choose_theme(self, name: str) -> None:
        """Take a theme by its name. Raises UserError."""
        if name not in NAMES:
            raise UserError(f"no theme {name[:20]!r}: `theme` shows all {len(NAMES)}")
        self.theme = NAMES[name]


_NEAREST: Final = Nearest()
_ENTER: Final = "\x1b[?1049h"
_LEAVE: Final = ("\x1b[?1049l", "\x1b[?25h")
"""Sequence that restores the shell's screen and cursor."""


class TerminalDriver(LinuxDriver):
    """Textual's driver, writing to another file."""

    _stands: ClassVar[bool] = False
    """Whether the terminal still shows the screen of an app that has ended."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._file = terminal_file()
        self.terminals = [self.fileno] * os.isatty(self.fileno)  # of a pipe only the writer ends

    def write(self, data: str) -> None:
        if data in _LEAVE:
            TerminalDriver._stands = getattr(self._app, "stays", False)
        if not TerminalDriver._stands or data not in (_ENTER, *_LEAVE):
            super().write(data)

    @classmethod
    def leave(cls) -> None:
        """Go back to the shell's screen, if an app's picture is still shown."""
        if cls._stands:
            cls._stands = False
            with suppress(OSError), terminal_file() as out:
                out.write("".join(_LEAVE))


def terminal_file() -> TextIOWrapper:
    """Return the terminal, opened for writing: stderr or stdout if one of them is a terminal, else
    /dev/tty. Raises OSError if there is none."""
    streams = (stream for stream in (sys.__stderr__, sys.__stdout__) if stream is not None)
    where: int | str = next(
        (candidate.fileno() for candidate in streams if candidate.isatty()), "/dev/tty"
    )
    encoding = "utf-8" if has_utf8() else "ascii"
    return open(
        where, "w", encoding=encoding, errors=ERRORS, newline="", closefd=isinstance(where, str)
    )
