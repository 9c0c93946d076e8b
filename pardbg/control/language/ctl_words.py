"""A line of ``pardbg ctl`` as the verb, ranks and arguments that are sent to the hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pardbg.control.language import arguments
from pardbg.errors import UserError
from pardbg.events.control_codes import Verb

_ELSEWHERE = {
    "up": "use `--frame N` with p, list, args or locals",
    "down": "use `--frame N` with p, list, args or locals",
    "quit": "each ctl command ends by itself; `continue` resumes every rank",
}


def ctl_words(
    words: tuple[str, ...], frame: int = 0
) -> tuple[str | None, Verb, str | None, Mapping[str, Any]]:
    """Return (run, verb, rank set, the verb's other arguments). ``frame``: the stack frame that is
    inspected. Raises UserError."""
    verbs = {verb.value: verb for verb in Verb if verb is not Verb.INSPECT}
    known = {*verbs, *arguments.INSPECT, arguments.COMPARE, *arguments.PDB}
    words = _unquoted(words)
    run_name = None if words[0] in known or words[0][:1] == "!" else words[0]
    rest = words if run_name is None else words[1:]
    if rest and rest[0][:1] == "!":
        rest = ("exec", rest[0][1:], *rest[1:])
    word = arguments.PDB.get(rest[0], rest[0]) if rest else ""
    text = " ".join(rest[1:])
    if word in arguments.INSPECT or word == arguments.COMPARE:
        ranks, args = arguments.inspect_words(word, text)
        if word == arguments.DAP and ranks is None:
            raise UserError("dap RANK: as in `pardbg ctl dap 2`")
        return run_name, Verb.INSPECT, ranks or "held", {**args, "frame": frame}
    if word in verbs:
        verb = arguments.verb_meant(verbs[word], text.split())
        return run_name, verb, *arguments.verb_words(verb, text.split())
    if word in _ELSEWHERE:
        raise UserError(f"{word} is for the console: {_ELSEWHERE[word]}")
    what = f"no verb {rest[0]!r}" if rest else f"{words[0]!r} is not a verb"
    raise UserError(f"{what}; verbs: {', '.join((*verbs, *arguments.INSPECT, arguments.COMPARE))}")


def _unquoted(words: tuple[str, ...]) -> tuple[str, ...]:
    """``ctl "break mb==3"`` is ``ctl break mb==3``."""
    first: list[str] = []
    for word in words[:2]:
        first += word.split(" ", 1) if word[:1] != "!" else [word]
    return (*first, *words[2:])
