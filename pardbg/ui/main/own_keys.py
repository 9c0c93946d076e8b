"""The user's own keys: ``key KEY COMMAND`` gives a free key a line of the prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from textual.binding import Binding, BindingsMap
from textual.keys import Keys

from pardbg.errors import UserError
from pardbg.render.frame.panels import HelpRow
from pardbg.ui.commands import command_line
from pardbg.ui.commands.actions import ACTIONS
from pardbg.ui.commands.startup import REFUSED

TITLE: Final = "Your keys"
_KNOWN: Final = frozenset(key.value for key in Keys if key.value.isprintable())


class OwnKeys:
    """Own keys beside a screen's ``bindings``, which it extends."""

    def __init__(self, bindings: BindingsMap) -> None:
        self._bindings = bindings
        self._lines: dict[str, tuple[str, str]] = {}
        """Textual's name of a key -> (the key as it was typed, its line)."""

    def bind(self, argument: str) -> None:
        """Take ``KEY COMMAND``. Raises UserError."""
        shown, _, text = (part.strip() for part in argument.partition(" "))
        if not text:
            raise UserError("key KEY COMMAND: as in `key f5 step all` or `key G goto end`")
        shown = shown if len(shown) == 1 else shown.lower()
        if not (len(shown) == 1 or shown in _KNOWN or (shown[:4] == "alt+" and len(shown) == 5)):
            raise UserError(f"no key {shown[:20]!r}: one character, f1 to f12, ctrl+x, alt+x, …")
        (binding,) = Binding.make_bindings([(shown, f"press('{shown}')", "")])
        name = binding.key
        taken = next((one.label for one in ACTIONS if name in one.keys), "taken here")
        if name in self._bindings.key_to_bindings and name not in self._lines:
            raise UserError(f"{shown} is {taken}: a capital letter or a function key is free")
        word = command_line.parse(text, live=True).action.command
        if word in REFUSED:
            raise UserError(f"{word} cannot be a key's command")
        if name not in self._lines:
            self._bindings.bind(name, f"press('{name}')", show=False)
        self._lines[name] = (shown, text)

    def line_of(self, key: str) -> str:
        """Return the line of a key; empty: it is none of these."""
        return self._lines.get(key, ("", ""))[1]

    def help_rows(self) -> Iterator[HelpRow]:
        for shown, text in self._lines.values():
            yield TITLE, shown, "", text
