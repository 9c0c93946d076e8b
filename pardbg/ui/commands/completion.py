"""What may come next on the ``:`` line: verbs, fields of EXPR, rank sets, words of a usage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pardbg.control.language.arguments import COMPARE, INSPECT, PDB
from pardbg.control.language.expr import FIELDS
from pardbg.control.language.verbs import Verb
from pardbg.ui.commands.actions import Action, by_command, for_mode

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
    """Whole lines that ``text`` may become, best first; a blank at the end where more must come."""
    if " " not in text:
        known = (_with_blank(action) for action in for_mode(live) if action.command)
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
    """(what of the rest stays, words that may stand after it)."""
    before, word = action.command, rest.rpartition(" ")[2]
    head = rest[: len(rest) - len(word)]
    said = head.split()
    if said and said[-1] == "on":
        return _in_rank_set(head, word, ranks)
    if before in _CONDITIONS:
        return _condition(rest, said, before == "condition")
    if before in _RANKED:
        if before == "pause" and len(said) == 1:
            return head, ("hold",)
        return (head, ()) if said else _in_rank_set(head, word, ranks)
    if before == "help":
        return head, [a.command for a in for_mode(live) if a.command]
    if before == COMPARE:
        hashed = said == ["--hash"]
        return head, ("params", "grads", "optimizer") if hashed else ("--hash ", "on ")
    if before in INSPECT:
        return head, ("on ",) if said or before in ("list", "args", "locals") else ()
    if not said:
        return head, _alternatives(action.usage, ranks)
    if "on RANKS" in action.usage:
        return head, ("on ",)
    return _in_rank_set(head, word, ranks) if "[RANKS]" in action.usage else (head, ())


def _condition(rest: str, said: Sequence[str], numbered: bool) -> tuple[str, Sequence[str]]:
    """A field, a value of the field that is compared, or what joins two comparisons."""
    if numbered and not said:
        return rest, ()
    compared = _COMPARED.search(rest)
    if compared is not None:
        return rest[: compared.start(2)], _VALUES.get(compared[1], ())
    found = _LAST.search(rest)
    at = found.start() if found else len(rest)
    fields = sorted(FIELDS)
    return rest[:at], [*fields, *(f"{word} " for word in _JOINING)] if said else fields


def _in_rank_set(head: str, word: str, ranks: Sequence[int]) -> tuple[str, Sequence[str]]:
    comma = word.rfind(",") + 1
    numbers = [str(rank) for rank in ranks[:MAX_RANKS]]
    return head + word[:comma], [*RANK_SETS, *numbers]


def _alternatives(usage: str, ranks: Sequence[int]) -> list[str]:
    """``off|summary|full [RANKS]`` -> off, summary, full; ``slow>K`` -> ``slow>``."""
    first = usage.partition(" ")[0]
    if "|" not in first:
        return [str(rank) for rank in ranks[:MAX_RANKS]] if first == "N" else []
    return [re.sub(r"[A-Z]$", "", word) for word in first.split("|")]


def _with_blank(action: Action) -> str:
    return f"{action.command} " if action.usage else action.command


def _starts(word: str, typed: str) -> bool:
    return word.lower().startswith(typed.lower()) and word != typed
