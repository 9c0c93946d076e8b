"""The ``:`` line: parsing to actions, completion (verbs, fields of EXPR, rank sets, words of a
usage), and the line under the prompt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from pardbg.control.language.arguments import COMPARE, DAP, INSPECT, PDB, PLAIN
from pardbg.control.language.expr import FIELDS
from pardbg.errors import UserError
from pardbg.events.control_codes import Verb
from pardbg.render.draw.cells import Line, Segment, fit, line
from pardbg.session.navigation.goto import FORMS as PLACES
from pardbg.ui.commands.actions import GLOSSARY, Action, by_command, for_mode

__all__ = ["PLACES", "Command", "candidates", "factor", "parse"]
_NEAR: Final = 0.75
"""Likeness from which a word is suggested: ``ll`` is not ``kill``, ``foo`` not ``follow``."""
_BACK: Final = "a rank cannot go back; `goto step 3` shows it"
_INSTEAD: Final = {
    "jump": _BACK, "j": _BACK, "run": "the job runs already; `continue` lets held ranks run",
    "return": "`until EXPR` runs on to a place", "r": "`until EXPR` runs on to a place",
    "interact": "`p EXPR` evaluates in a held rank",
    "info": "`breaks`, `ranks` and `status` list",
}  # fmt: skip
"""Commands of other debuggers -> the equivalents in pardbg."""
MODE_ONLY: Final = {"live": "a live run", "replay": "a recording"}


@dataclass(frozen=True, slots=True)
class Command:
    action: Action
    argument: str


def parse(text: str, live: bool) -> Command:
    """Parse ``step 0-2`` as the step action with ``0-2``; raises UserError."""
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
        raise UserError(f"{word!r} could be {names}")
    elsewhere = by_command(word, not live)
    if elsewhere:
        where = MODE_ONLY.get(elsewhere[0].context, "another mode")
        raise UserError(f"{word!r} works only in {where}")
    known = [a.command for a in for_mode(live) if a.command]
    near = get_close_matches(word, known, 1, cutoff=_NEAR)
    hint = _INSTEAD.get(word) or (f"did you mean {near[0]!r}?" if near else "? lists all")
    raise UserError(f"no command {word!r}: {hint}")


def candidates(text: str, live: bool) -> list[tuple[str, str]]:
    """Return (command with its arguments, help) of commands that the text may begin."""
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
        raise UserError(f"{text!r} is not a number") from None


def factor(text: str) -> float:
    """Return the playing speed of ``2``, ``0.5`` or ``4x``."""
    value = _number(text.strip().lower().rstrip("x×"))
    if value <= 0:
        raise UserError("a speed is a number above 0, such as 2 or 0.5")
    return value


RANK_SETS: Final = ("all", "held", "waiting", "stage=", "host=", "rank=")
MAX_RANKS: Final = 16
"""Single ranks are offered up to this many."""
_CONDITIONS: Final = ("break", "tbreak", "until", "condition")
_JOINING: Final = ("and", "or", "not", "in", "on")
_VALUES: Final = {
    "action": ("F", "B", "I", "W"),
    "op": ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier",
           "reduce", "gather", "scatter", "send", "recv"),
    "dtype": ("float32", "bfloat16", "float16", "int64"),
}  # fmt: skip
_RANKED: Final = tuple(
    verb.value for verb in (Verb.PAUSE, Verb.STEP, Verb.TICK, Verb.NEXT, Verb.OP, Verb.WHERE,
                            Verb.RANKS, Verb.DELAY)
)  # fmt: skip
_LAST: Final = re.compile(r"[^\s()<>=!,&|+*/%-]*$")
_COMPARED: Final = re.compile(r"(\w+)\s*[!=]=\s*(\w*)$")


def complete(text: str, live: bool, ranks: Sequence[int] = ()) -> list[str]:
    """Return the lines that ``text`` may become, best first; a blank at the end if more must
    follow."""
    if " " not in text:
        actions = [action for action in for_mode(live) if action.command]
        known = (f"{one.command} " if one.usage else one.command for one in actions)
        return [word for word in known if _starts(word, text)]
    word, _, rest = text.partition(" ")
    found = by_command(PDB.get(word.lower(), word.lower()), live)
    if len(found) != 1:
        return []
    head, options = _options(found[0], rest, ranks, live)
    start = text[: len(text) - len(rest) + len(head)]
    typed = rest[len(head) :]
    return [start + word for word in options if _starts(word, typed)]


def _options(
    action: Action, rest: str, ranks: Sequence[int], live: bool
) -> tuple[str, Sequence[str]]:
    """Return (the unchanged start of the arguments, words that may follow there)."""
    before, word = action.command, rest.rpartition(" ")[2]
    head = rest[: len(rest) - len(word)]
    words = head.split()
    if words and words[-1] == "on":
        return _in_rank_set(head, word, ranks)
    if before in _CONDITIONS:
        return _condition(rest, words, before == "condition")
    if before in _RANKED:
        if before == "pause" and len(words) == 1:
            return head, ("hold",)
        return (head, ()) if words else _in_rank_set(head, word, ranks)
    if before == "help":
        return head, [*(a.command for a in for_mode(live) if a.command),
                      *(names[0] for names, _ in GLOSSARY)]  # fmt: skip
    if before == COMPARE:
        hashed = words == ["--hash"]
        return head, ("params", "grads", "optimizer") if hashed else ("--hash ", "on ")
    if before in INSPECT and before != DAP:
        return head, ("on ",) if words or before in PLAIN else ()
    if before in ("theme", "columns"):
        from pardbg.render.pages.overview.rank_table import COLUMNS  # slow, as is the next
        from pardbg.ui.palette import NAMES

        return head, tuple(NAMES) if before == "theme" else COLUMNS
    if not words:
        return head, _alternatives(action.usage, ranks)
    if "on RANKS" in action.usage:
        return head, ("on ",)
    return _in_rank_set(head, word, ranks) if "[RANKS]" in action.usage else (head, ())


def _condition(rest: str, words: Sequence[str], numbered: bool) -> tuple[str, Sequence[str]]:
    """Complete a field, a value of the compared field, or a word that joins two comparisons."""
    if numbered and not words:
        return rest, ()
    compared = _COMPARED.search(rest)
    if compared is not None:
        return rest[: compared.start(2)], _VALUES.get(compared[1], ())
    found = _LAST.search(rest)
    at = found.start() if found else len(rest)
    fields = sorted(FIELDS)
    return rest[:at], [*fields, *(f"{word} " for word in _JOINING)] if words else fields


def _in_rank_set(head: str, word: str, ranks: Sequence[int]) -> tuple[str, Sequence[str]]:
    comma = word.rfind(",") + 1
    numbers = [str(rank) for rank in ranks[:MAX_RANKS]]
    return head + word[:comma], [*RANK_SETS, *numbers]


def _alternatives(usage: str, ranks: Sequence[int]) -> list[str]:
    """Return off, summary, full for ``off|summary|full [RANKS]``, and ``slow>`` for ``slow>K``."""
    first = usage.partition(" ")[0]
    if "|" not in first:
        return [str(rank) for rank in ranks[:MAX_RANKS]] if first == "N" else []
    return [re.sub(r"[A-Z]$", "", word) for word in first.split("|")]


def _starts(word: str, typed: str) -> bool:
    return word.lower().startswith(typed.lower()) and word != typed


def note_line(cells: int) -> Line:
    """Return the line under the prompt for a bookmark's note."""
    parts = (" ", Segment("enter", "key"), " keep   ", Segment("esc", "key"), " not")
    return fit(line(*parts), cells)


def candidates_line(text: str, live: bool, completions: Sequence[str], cells: int) -> Line:
    """Return the usages of commands that ``text`` may become; for a single one its help, or the
    words that may follow. ``completions``: whole lines."""
    found = candidates(text, live)
    if len(found) != 1:
        return fit(line(" ", *(Segment(f"{usage}  ", "key") for usage, _ in found)), cells)
    usage, help_ = found[0]
    coming = [whole.rstrip().rpartition(" ")[2] for whole in completions]
    more = "  ".join(coming) if " " in text and coming else help_
    return fit(line(" ", Segment(usage, "key"), Segment(f"  {more}", "dim")), cells)
