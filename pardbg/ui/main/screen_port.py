"""What the parts of the main screen need of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pardbg.analysis.findings.finding import Finding
from pardbg.ui.screens.base import Page, Shared
from pardbg.ui.screens.panel import Panel


class ScreenPort(Protocol):
    """The main screen as its actions see it."""

    live: bool
    shared: Shared
    pages: Mapping[str, Page]

    @property
    def page(self) -> Page:
        """Return the visible page."""
        ...

    @property
    def active(self) -> str:
        """Return the visible page's name."""
        ...

    def say(self, text: str, style: str = "dim") -> None:
        """Show one line at the bottom for some seconds."""
        ...

    def paint(self) -> None:
        """Draw header, status line and hints."""
        ...

    def show_page(self, name: str) -> None:
        """Switch to a page."""
        ...

    def show_finding(self, finding: Finding) -> None:
        """Switch to the findings page, with this one selected."""
        ...

    def want_page(self) -> None:
        """Tell the engine what the visible page needs."""
        ...

    def push_panel(self, panel: Panel) -> None:
        """Open a panel over the page."""
        ...

    def ask(self, kind: str, text: str = "") -> None:
        """Open the prompt, with ``text`` already in it."""
        ...
