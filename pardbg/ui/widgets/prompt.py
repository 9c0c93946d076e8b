"""The prompt: ``:`` commands with completion and history, ``/`` filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Final

from textual import events
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input

from pardbg.ui.commands.startup import History

Complete = Callable[[str], Sequence[str]]
NOTE: Final = "m"
"""Kind of prompt that asks for a bookmark's note."""


class _Likely(Suggester):
    """The likely rest of the line: from the history, else the first completion."""

    def __init__(self, likely: Callable[[str], str | None]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._likely = likely

    async def get_suggestion(self, value: str) -> str | None:
        return self._likely(value)


class Prompt(Input):
    """A one-line input for one purpose (``:`` or ``/``)."""

    @dataclass
    class Done(Message):
        """Message: the line was entered (``text``) or abandoned (``None``)."""

        kind: str
        text: str | None

    @dataclass
    class Edited(Message):
        """Message: the text changed, so filters apply at once and candidates follow."""

        kind: str
        text: str

    @dataclass
    class Kept(Message):
        """Message: a new line for the history file."""

        line: str

    def __init__(
        self, complete: Complete, history: History | None = None, *, id: str | None = None
    ) -> None:
        """Set up the prompt; ``complete`` returns the whole lines a text may become, best first."""
        likely = _Likely(self._likely)
        super().__init__(id=id, compact=True, select_on_focus=False, suggester=likely)
        self._complete = complete
        self.kind = ":"
        self.history = history or History(None)
        self._at = 0
        self._typed = ""
        """The unfinished line from before the history was looked at."""
        self._round: tuple[str, ...] = ()
        """Completions that tab cycles through."""

    def ask(self, kind: str, text: str = "") -> None:
        """Open for a command or a filter."""
        self.kind = kind
        self._put(text)
        self._at = len(self.history.lines)
        self.screen.set_focus(self)  # at once: focus() would let the next keys go elsewhere

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Edited(self.kind, self.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        text = self.value.strip()
        if self.kind == ":" and self.history.add(text):
            self.post_message(self.Kept(text))
        self.post_message(self.Done(self.kind, text))

    def on_key(self, event: events.Key) -> None:
        """Handle keys that an input does not have: abandon, complete, recall."""
        if event.key == "escape":
            self.post_message(self.Done(self.kind, None))
        elif event.key == "tab":
            if self.kind == ":":
                self._tab()
        elif event.key in ("up", "down") and self.kind == ":":
            self._recall(-1 if event.key == "up" else 1)
        elif event.key == "backspace" and not self.value:
            self.post_message(self.Done(self.kind, None))
        else:
            return
        event.stop()
        event.prevent_default()

    def _put(self, text: str) -> None:
        self.value = text
        self.cursor_position = len(text)

    def _tab(self) -> None:
        """Complete as far as all completions agree; after that, cycle through them."""
        if self.value in self._round:
            self._put(self._round[(self._round.index(self.value) + 1) % len(self._round)])
            return
        found = tuple(self._complete(self.value))
        if not found:
            return
        common = commonprefix(found)  # noqa: RUF071
        self._round = found if len(found) > 1 and common == self.value else ()
        self._put(self._round[0] if self._round else common)

    def _likely(self, value: str) -> str | None:
        if self.kind != ":" or not value.strip():
            return None
        typed = (line for line in reversed(self.history.lines) if line.startswith(value))
        found = next((line for line in typed if line != value), None)
        return found or next(iter(self._complete(value)), None)

    def _recall(self, by: int) -> None:
        """Recall lines of the history; below the newest is the line being typed."""
        lines = self.history.lines
        if self._at >= len(lines):
            self._typed = self.value
        self._at = min(max(self._at + by, 0), len(lines))
        self._put(lines[self._at] if self._at < len(lines) else self._typed)
