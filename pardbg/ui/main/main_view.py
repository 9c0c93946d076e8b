"""What handlers of actions may ask of the main screen, and what that may ask of the app."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from pardbg.analysis.findings.shared import Finding
from pardbg.store.history import Bookmark
from pardbg.ui.engine.feed import Want
from pardbg.ui.engine.landmarks import Journey
from pardbg.ui.screens.base import Page, Shared
from pardbg.ui.screens.panel import Draw, Panel

NOTE: Final = "m"
"""The prompt asks for a bookmark's note."""

Handler = Callable[[str], None]
"""Does one action; gets the argument of its command, empty for a key. Raises CommandError."""
Handlers = Mapping[str, Handler]
"""Action id -> what does it."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What the main screen may ask of the app."""

    want: Callable[[Want], None]
    wake: Callable[[], None]
    go: Callable[[Journey], None]
    mark: Callable[[Bookmark], None]
    """Keep a bookmark; one without text takes the mark at its time away."""


class MainView(Protocol):
    """The main screen as its handlers see it."""

    shared: Shared
    """The newest frame and the selected rank."""
    pages: Mapping[str, Page]
    live: bool

    @property
    def page(self) -> Page:
        """The page that is visible."""

    @property
    def active(self) -> str:
        """Its name."""

    def say(self, text: str, style: str = "dim") -> None:
        """One line at the bottom, for a while."""

    def paint(self) -> None:
        """Draw header, status and hints again."""

    def show_page(self, name: str) -> None:
        """Switch to a page."""

    def show_finding(self, finding: Finding) -> None:
        """The findings page with this one chosen."""

    def want_page(self) -> None:
        """Tell the engine what the visible page needs now."""

    def ask(self, kind: str, text: str = "") -> None:
        """Open the prompt: ``:``, ``/`` or NOTE, with ``text`` already in it."""

    def push_panel(self, panel: Panel) -> None:
        """Show a panel; a ``:`` or ``/`` typed over it closes it and opens the prompt."""

    def open_panel(self, title: str, draw: Draw) -> None:
        """Show a framed picture over the page."""
