"""Arguments of verbs about the recording: ``level full 0-3 30s`` and ``mark NOTE``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from pardbg.control.language.verbs import Verb
from pardbg_agent.wire import LEVELS

_WHILE: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m)")
USAGE: Final = "off|summary|full [RANKS] [30s]"


def recording_words(verb: Verb, words: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """Return (rank set, arguments) from the words after ``level`` or ``mark``. Raises ValueError,
    one line for the user."""
    if verb is Verb.MARK:
        return None, {"text": " ".join(words)}
    if not words or words[0] not in LEVELS:
        raise ValueError(f"level is {', '.join(LEVELS)}, as in `level full 0-3 30s`")
    args: dict[str, Any] = {"level": words[0]}
    rest = list(words[1:])
    if rest and (match := _WHILE.fullmatch(rest[-1])):
        args["for_s"] = float(match[1]) * (60 if match[2] == "m" else 1)
        rest.pop()
    if len(rest) > 1:
        raise ValueError(f"level takes one rank set and a time, not {' '.join(rest)!r}")
    return (rest[0] if rest else None), args
