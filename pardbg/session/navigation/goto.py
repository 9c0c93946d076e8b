"""Places in time as people write them: ``step 42``, ``2B5``, ``18:22:07.3``, ``+250ms``."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pardbg.errors import UserError
from pardbg.events import fields
from pardbg.words import MAX_TEXT, parse_duration, whole

Kind = Literal[
    "time", "by", "share", "begin", "end", "wall", "step", "finding", "bookmark", "action"
]
_WALL: Final = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d{1,9})?))?", re.ASCII)
_ACTION: Final = re.compile(r"(\d{1,6})([A-Za-z_]+)(\d{0,6})", re.ASCII)
_DAY_NS: Final = 86_400 * 10**9
FORMS: Final = "step 42, 2B5, finding 3, mark 1, 18:22:07.3, 2m03s, +250ms, 40% or end"


@dataclass(frozen=True, slots=True)
class Target:
    """A place in time, parsed from the user's text."""

    kind: Kind
    number: int = 0
    """Step, number of a finding or bookmark; ns for ``time``, ``by`` and ``wall`` (of the day)."""
    share: float = 0.0
    text: str = ""
    """Text form of an action, or part of a bookmark's text."""


def parse(text: str) -> Target:
    """Return the place named by the text of a ``goto``. Raises UserError."""
    text = " ".join(text.split())
    word, _, rest = text.partition(" ")
    word = word.lower()
    if text.lower() in ("begin", "start", "end"):
        return Target("end" if word == "end" else "begin")
    if word in ("step", "finding"):
        return Target("step" if word == "step" else "finding", _whole(rest, word))
    if word in ("mark", "bookmark"):
        if not rest:
            raise UserError("which bookmark? write `goto mark 1` (`:marks` lists them)")
        number = whole(rest)
        return Target("bookmark", text=rest) if number is None else Target("bookmark", number)
    if text.endswith("%"):
        return Target("share", share=_share(text[:-1]))
    if text[:1] in ("+", "-", "−"):
        sign = 1 if text[0] == "+" else -1
        return Target("by", sign * duration_ns(text[1:]))
    if wall := _WALL.fullmatch(text):
        return _wall(wall)
    if action := _ACTION.fullmatch(text):
        stage, name, mb = action.groups()
        if name.upper() in ("F", "B", "I", "W", "UNSHARD", "RESHARD", "REDUCE_GRAD"):
            return Target("action", text=f"{int(stage)}{name.upper()}{mb}")
    return Target("time", duration_ns(text))


def duration_ns(text: str) -> int:
    """Return the duration of ``12.5``, ``2m03s`` or ``300ms`` in ns. Raises UserError."""
    try:
        return parse_duration(text)
    except ValueError as error:
        if "longer" in str(error):
            raise UserError(str(error)) from None
        raise UserError(f"no time {text[:MAX_TEXT]!r}: write {FORMS}") from None


def wall_near(run: Mapping[str, Any], target: Target, begin_ns: int, end_ns: int) -> int:
    """Return a local time of day as hub ns: the first occurrence in the run, else the nearest."""
    to_wall = fields.integer(run, "wall_ns", 0) - fields.integer(run, "t_ns", begin_ns)
    if to_wall <= 0:
        raise UserError("this session does not say what time of day it was")
    begin = begin_ns + to_wall
    local = time.localtime(begin / 1e9)
    midnight = time.mktime((local.tm_year, local.tm_mon, local.tm_mday, 0, 0, 0, 0, 0, -1))
    first = round(midnight) * 10**9 + target.number
    days = [first + day * _DAY_NS for day in range(-1, 2 + (end_ns - begin_ns) // _DAY_NS)]
    inside = [t for t in days if begin <= t <= end_ns + to_wall]
    if inside:
        return inside[0] - to_wall
    return min(days, key=lambda t: min(abs(t - begin), abs(t - end_ns - to_wall))) - to_wall


def _wall(match: re.Match[str]) -> Target:
    hours, minutes, seconds = int(match[1]), int(match[2]), float(match[3] or 0)
    if hours > 23 or minutes > 59 or seconds >= 61:
        raise UserError(f"no time of day {match[0]!r}: write 18:22:07.3")
    return Target("wall", (hours * 3600 + minutes * 60) * 10**9 + round(seconds * 1e9))


def _whole(text: str, what: str) -> int:
    number = whole(text, 10**12 - 1)
    if number is None:
        raise UserError(f"which {what}? write `goto {what} 3`")
    return number


def _share(text: str) -> float:
    try:
        return min(max(float(text), 0.0), 100.0) / 100
    except ValueError:
        raise UserError(f"no share {text + '%'!r}: write 40%") from None
