"""The command palette (``ctrl p``): search in pages, commands, ranks, findings and words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from textual.await_complete import AwaitComplete
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider

from pardbg.render.frame.activity import activity_text
from pardbg.ui.commands.actions import GLOSSARY, SCREENS, Action, for_mode, glossary
from pardbg.ui.main.main_screen import MainScreen
from pardbg.ui.screens.panel import word_panel

_IN_HELP: Final = 0.01
"""Score of a command that has the typed text only in its help: below all matching names."""


@dataclass(frozen=True, slots=True)
class _Entry:
    text: str
    help: str
    do: Callable[[], object]


class Palette(CommandPalette):
    """Textual's palette, which closes once also where enter comes twice."""

    def dismiss(self, result: Any = None) -> AwaitComplete:
        return super().dismiss(result) if self in self.app.screen_stack else AwaitComplete()


class Commands(Provider):
    """Commands that the palette offers on the main screen."""

    @property
    def _main(self) -> MainScreen:
        main = self.app.screen_stack[0]
        assert isinstance(main, MainScreen)
        return main

    async def discover(self) -> Hits:
        """Return pages and commands, before anything is typed."""
        for entry in (*self._pages(), *self._commands()):
            yield DiscoveryHit(entry.text, entry.do, help=entry.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        found = (self._pages, self._commands, self._ranks, self._findings, self._words)
        for entry in (one for part in found for one in part()):
            said = query.lower() in entry.help.lower()
            score = matcher.match(entry.text) or (_IN_HELP if said else 0.0)
            if score > 0:
                yield Hit(score, matcher.highlight(entry.text), entry.do, help=entry.help)

    def _pages(self) -> Iterator[_Entry]:
        for number, name, help_ in SCREENS:
            do = partial(self._main.show_page, name)
            yield _Entry(f"{number} {name.capitalize()}", help_, do)

    def _commands(self) -> Iterator[_Entry]:
        for action in for_mode(self._main.live):
            if action.command and action.group != "screens":
                text = f"{action.command} {action.usage}".strip()
                yield _Entry(text, action.help, partial(self._perform, action))

    def _perform(self, action: Action) -> None:
        """Perform an action, or ask for its required argument."""
        if action.usage and not action.usage.startswith("["):
            self._main.ask(":", f"{action.command} ")
        else:
            self._main.perform(action, "")

    def _ranks(self) -> Iterator[_Entry]:
        frame = self._main.shared.frame
        for row in frame.snapshot.ranks if frame is not None else ():
            do = partial(self._main.handlers["rank"], str(row.rank))
            yield _Entry(f"rank {row.rank}", activity_text(row.now) or row.state, do)

    def _findings(self) -> Iterator[_Entry]:
        frame = self._main.shared.frame
        for finding in frame.findings if frame is not None else ():
            do = partial(self._main.show_finding, finding)
            yield _Entry(f"finding: {finding.kind}", finding.text, do)

    def _words(self) -> Iterator[_Entry]:
        for names, text in GLOSSARY:
            yield _Entry(f"word: {', '.join(names)}", text, partial(self._explain, names[0]))

    def _explain(self, word: str) -> None:
        self._main.push_panel(word_panel(word, glossary(word)))
