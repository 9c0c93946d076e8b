"""The ``:`` line: words to actions, and completion."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from pardbg.control.language.arguments import PDB
from pardbg.session.navigation.goto import FORMS as PLACES
from pardbg.ui.commands.actions import Action, by_command, for_mode

__all__ = ["PLACES", "Command", "CommandError", "candidates", "factor", "parse"]
_MODE_ONLY = {"live": "a live run", "replay": "a recording"}


class CommandError(ValueError):
    """One line: what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class Command:
    action: Action
    argument: str


def parse(text: str, live: bool) -> Command:
    """``step 0-2`` -> the step action with ``0-2``; raises CommandError."""
    text = text.strip()
    if text.startswith("!"):
        text = f"exec {text[1:]}"
    word, _, argument = text.partition(" ")
    word = PDB.get(word.lower(), word.lower())
    found = by_command(word, live)
    if len(found) == 1:
        return Command(found[0], argument.strip())
    if found:
        names = ", ".join(sorted(action.command for action in found))
        raise CommandError(f"{word!r} could be {names}")
    elsewhere = by_command(word, not live)
    if elsewhere:
        where = _MODE_ONLY.get(elsewhere[0].context, "another mode")
        raise CommandError(f"{word!r} works only in {where}")
    near = get_close_matches(word, [a.command for a in for_mode(live) if a.command], 1)
    hint = f"did you mean {near[0]!r}?" if near else "? lists all"
    raise CommandError(f"no command {word!r}: {hint}")


def candidates(text: str, live: bool) -> list[tuple[str, str]]:
    """(command with its arguments, help) for the line under the prompt."""
    word, space, _ = text.partition(" ")
    word = "exec" if word.startswith("!") else word.lower()
    meant = PDB.get(word, word) if space or word in PDB else word
    found = [a for a in for_mode(live) if a.command and a.command.startswith(meant)]
    if space or word in PDB:
        found = [a for a in found if a.command == meant]
    return [(f"{a.command} {a.usage}".strip(), a.help) for a in found]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CommandError(f"no number {text!r}") from None


def factor(text: str) -> float:
    """A speed: ``2``, ``0.5``, ``4x``."""
    value = _number(text.strip().lower().rstrip("x×"))
    if value <= 0:
        raise CommandError("a speed is a number above 0, such as 2 or 0.5")
    return value
