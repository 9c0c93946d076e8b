"""Interface of the main screen for its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pardbg.analysis.findings.finding import Finding
from pardbg.ui.commands.actions import Handlers
from pardbg.ui.main.own_keys import OwnKeys
from pardbg.ui.screens.base import Page, Shared
from pardbg.ui.screens.panel import Panel


class ScreenPort(Protocol):
    """Interface of the main screen for its actions; `MainScreen` documents each method."""

    live: bool
    shared: Shared
    pages: Mapping[str, Page]
    handlers: Handlers
    own_keys: OwnKeys

    @property
    def page(self) -> Page: ...

    @property
    def active(self) -> str: ...

    def say(self, text: str, style: str = "dim") -> None: ...

    def paint(self) -> None: ...

    def show_page(self, name: str) -> None: ...

    def show_finding(self, finding: Finding) -> None: ...

    def want_page(self) -> None: ...

    def push_panel(self, panel: Panel) -> None: ...

    def jump(self, on: bool) -> None: ...

    def run_line(self, text: str) -> None: ...

    def ask(self, kind: str, text: str = "") -> None: ...
