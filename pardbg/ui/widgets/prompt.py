"""The line one types on: ``:`` commands with completion and history, ``/`` filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import events
from textual.message import Message
from textual.widgets import Input

_HISTORY = 200


class Prompt(Input):
    """A one-line input that knows what it is asked for (``:`` or ``/``)."""

    class Done(Message):
        """The line was entered (``text``) or given up (``None``)."""

        def __init__(self, kind: str, text: str | None) -> None:
            super().__init__()
            self.kind = kind
            self.text = text

    class Edited(Message):
        """The text changed: filters apply at once, candidates follow."""

        def __init__(self, kind: str, text: str) -> None:
            super().__init__()
            self.kind = kind
            self.text = text

    def __init__(self, complete: Callable[[str], Sequence[str]], *, id: str | None = None) -> None:
        super().__init__(id=id, compact=True, select_on_focus=False)
        self._complete = complete
        self.kind = ":"
        self._history: list[str] = []
        self._at = 0

    def ask(self, kind: str, text: str = "") -> None:
        """Open for a command or a filter."""
        self.kind = kind
        self.value = text
        self.cursor_position = len(text)
        self._at = len(self._history)
        self.screen.set_focus(self)  # at once: focus() would let the next keys go elsewhere

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Edited(self.kind, self.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        text = self.value.strip()
        if text and self.kind == ":" and self._history[-1:] != [text]:
            self._history = [*self._history[-_HISTORY:], text]
        self.post_message(self.Done(self.kind, text))

    def on_key(self, event: events.Key) -> None:
        """Keys an input does not have: give up, complete, and the lines before."""
        if event.key == "escape":
            self.post_message(self.Done(self.kind, None))
        elif event.key == "tab":
            found = self._complete(self.value) if self.kind == ":" else ()
            if found:
                self.value = found[0] + " "
                self.cursor_position = len(self.value)
        elif event.key in ("up", "down") and self.kind == ":":
            self._recall(-1 if event.key == "up" else 1)
        elif event.key == "backspace" and not self.value:
            self.post_message(self.Done(self.kind, None))
        else:
            return
        event.stop()
        event.prevent_default()

    def _recall(self, by: int) -> None:
        self._at = min(max(self._at + by, 0), len(self._history))
        self.value = self._history[self._at] if self._at < len(self._history) else ""
        self.cursor_position = len(self.value)
