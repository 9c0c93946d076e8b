"""The ``:`` line: words to actions, completion, and times as people write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

from pardbg.ui.actions import Action, by_command, for_mode

_TIME = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)(s|ms)?)?")
_MODE_ONLY = {"live": "a live run", "replay": "a recording"}


class CommandError(ValueError):
    """One line: what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class Command:
    action: Action
    argument: str


def parse(text: str, live: bool) -> Command:
    """``step 0-2`` -> the step action with ``0-2``; raises CommandError."""
    word, _, argument = text.strip().partition(" ")
    word = word.lower()
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


def complete(text: str, live: bool) -> list[str]:
    """Commands that start with what was typed so far."""
    if " " in text:
        return []
    return [a.command for a in for_mode(live) if a.command.startswith(text.lower()) and a.command]


def candidates(text: str, live: bool) -> list[tuple[str, str]]:
    """(command with its arguments, help) for the line under the prompt."""
    word = text.partition(" ")[0].lower()
    found = [a for a in for_mode(live) if a.command and a.command.startswith(word)]
    if " " in text:
        found = [a for a in found if a.command == word]
    return [(f"{a.command} {a.usage}".strip(), a.help) for a in found]


def time_ns(text: str, total_ns: int) -> int:
    """``12.5``, ``2m03s``, ``1h2m``, ``300ms`` or ``40%`` of the run, ns from its begin."""
    text = text.strip().lower().replace(" ", "")
    if text.endswith("%"):
        share = _number(text[:-1])
        return round(min(max(share, 0.0), 100.0) / 100 * total_ns)
    match = _TIME.fullmatch(text)
    if not text or match is None or not any(match.groups()):
        raise CommandError(f"no time {text!r}: write 12.5, 2m03s, 300ms or 40%")
    hours, minutes, number, unit = match.groups()
    value = _number(number) if number else 0.0
    seconds = value / 1000 if unit == "ms" else value
    return round((int(hours or 0) * 3600 + int(minutes or 0) * 60 + seconds) * 1e9)


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
