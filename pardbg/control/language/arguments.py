"""Arguments of verbs, as users and scripts write them: ``break op==send on 0-1``, ``delay 2 50ms``,
``watch slow>5``, ``level full 0-3 30s``. The ``:`` line and ``pardbg ctl`` parse them here; the
agents carry out watches (pardbg_agent.control.watches)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pardbg.analysis.pipeline.dependencies import parse as parse_action
from pardbg.control.language import arguments
from pardbg.control.language.expr import parse
from pardbg.errors import UserError
from pardbg.events.control_codes import Verb
from pardbg.words import SIZE_UNITS, TIME_UNITS, parse_duration, whole
from pardbg_agent.wire import LEVELS, WATCH_KINDS

_ELSEWHERE = {
    "up": "use `--frame N` with p, list, args or locals",
    "down": "use `--frame N` with p, list, args or locals",
    "frames": "use `--all-frames` with p, list, args or locals",
    "quit": "each ctl command ends by itself; `continue` resumes every rank",
}


def ctl_words(
    words: tuple[str, ...], frame: int = 0, every_frame: bool = False
) -> tuple[str | None, Verb, str | None, Mapping[str, Any]]:
    """Return (run, verb, ranks, other arguments). ``frame``: number of the frame to inspect,
    library frames counted with ``every_frame``. Raises UserError."""
    verbs = {verb.value: verb for verb in Verb if verb is not Verb.INSPECT}
    known = {*verbs, *arguments.INSPECT, arguments.COMPARE, *arguments.PDB, *_ELSEWHERE}
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
        where = {"frame": frame, "every_frame": every_frame}
        return run_name, Verb.INSPECT, ranks or "held", {**args, **where}
    if word in verbs:
        verb = arguments.verb_meant(verbs[word], text.split())
        return run_name, verb, *arguments.verb_words(verb, text.split())
    if word in _ELSEWHERE:
        raise UserError(f"{word} is for the console: {_ELSEWHERE[word]}")
    what = f"no verb {rest[0]!r}" if rest else f"{words[0]!r} is not a verb"
    raise UserError(f"{what}; verbs: {', '.join((*verbs, *arguments.INSPECT, arguments.COMPARE))}")


def _unquoted(words: tuple[str, ...]) -> tuple[str, ...]:
    """Split a quoted first word: ``ctl "break mb==3"`` is ``ctl break mb==3``."""
    first: list[str] = []
    for word in words[:2]:
        first += word.split(" ", 1) if word[:1] != "!" else [word]
    return (*first, *words[2:])


_EXAMPLES: Final = "nan, mismatch, diverge, slow>5, skew>20ms, memory>2GiB"
_LIMITS: Final = {
    "slow": dict.fromkeys(("", "x", "×", "xmedian", "×median"), 1.0),
    "skew": TIME_UNITS,
    "memory": SIZE_UNITS,
}
"""Kinds of watches that have a limit: unit -> factor on the number."""
_WATCH: Final = re.compile(
    r"(?P<kind>[a-z]+)\s*(?:(?P<op>[<>=]+)\s*(?P<number>\d+\.?\d*|\.\d+)?\s*(?P<unit>\S*))?"
)
_MOST: Final = 1e18
_Said = tuple[str | None, dict[str, Any]]
_WHILE: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m)")
MOVES: Final = (Verb.STEP, Verb.TICK, Verb.NEXT, Verb.OP)
"""Verbs that move held ranks, and may be asked for several times at once: ``tick x5``."""
USAGE: Final[dict[Verb, str]] = {
    Verb.PAUSE: "[RANKS [hold]]",
    **dict.fromkeys(MOVES, "[RANKS] [xN]"),
    Verb.BREAK: "EXPR [on RANKS]",
    Verb.TBREAK: "EXPR [on RANKS]",
    Verb.UNTIL: "EXPR [on RANKS]",
    Verb.WATCH: "nan|mismatch|diverge|slow>K|skew>T|memory>X [on RANKS]",
    Verb.LEVEL: "off|summary|full [RANKS] [30s]",
    Verb.CONDITION: "N EXPR",
    Verb.IGNORE: "N COUNT",
    Verb.ENABLE: "[N …]",
    Verb.DISABLE: "[N …]",
    Verb.DELETE: "[N …]",
    Verb.DELAY: "RANKS TIME",
    Verb.INSPECT: "p|pp|whatis|tensor|list|longlist|args|locals|exec|hash|dap [EXPR] [on RANKS]",
}
MOST_TIMES: Final = 10_000
_TIMES: Final = re.compile(r"[x×][0-9]{1,9}|[0-9]{1,9}[x×]")
INSPECT: Final = (
    "p", "pp", "whatis", "tensor", "list", "longlist", "args", "locals", "exec", "hash", "dap",
)  # fmt: skip
"""Words that mean ``inspect WORD``."""
PLAIN: Final = ("list", "longlist", "args", "locals")
"""Words of INSPECT that take no expression."""
COMPARE: Final = "compare"
DAP: Final = "dap"
"""Word that ``inspect`` also takes, to wait for a debugger: it evaluates nothing."""
PDB: Final = {
    "c": "continue", "cont": "continue", "s": "step", "n": "next", "b": "break", "w": "where",
    "bt": "where", "l": "list", "ll": "longlist", "print": "p", "exit": "quit",
    "a": "args", "cl": "delete", "clear": "delete", "q": "quit",
    "u": "up", "d": "down", "h": "help", "unt": "until", "!": "exec",
    "t": "tick", "o": "op", "m": "mark",
}  # fmt: skip
"""pdb's own abbreviations, and some for verbs that pdb lacks."""
MAX_DELAY_NS: Final = 60 * 10**9


def verb_words(verb: Verb, words: Sequence[str]) -> _Said:
    """Return (rank set, the verb's other arguments). Raises UserError, one line for the user."""
    if verb is Verb.MARK:
        return None, {"text": " ".join(words)}
    if verb is Verb.LEVEL:
        return _level(words)
    if verb in (Verb.BREAK, Verb.TBREAK, Verb.UNTIL, Verb.WATCH):
        return _condition(verb, words)
    if verb is Verb.CONDITION:
        number, rest = _count(verb, words[:1]), " ".join(words[1:])
        return None, {"number": number, "expr": _parsed(verb, rest)}
    if verb is Verb.IGNORE:
        _exactly(verb, words, 2)
        return None, {"number": _count(verb, words[:1]), "count": _count(verb, words[1:])}
    if verb in (Verb.ENABLE, Verb.DISABLE, Verb.DELETE):
        return None, {"numbers": [_count(verb, [word]) for word in words]}
    if verb is Verb.DELAY:
        _exactly(verb, words, 2)
        return words[0], {"ns": _time(words[1])}
    if verb is Verb.PAUSE and len(words) == 2 and words[1] == "hold":
        return words[0], {"hold": True}
    if verb in MOVES:
        counts = [word for word in words if _TIMES.fullmatch(word)]
        words = [word for word in words if word not in counts]
        if counts:
            ranks, _ = verb_words(verb, words)
            if len(counts) > 1 or not 1 <= int(counts[0].strip("x×")) <= MOST_TIMES:
                raise UserError(f"{verb.value} x1 to x{MOST_TIMES}: how often; got "
                                 f"{' '.join(counts)}")  # fmt: skip
            return ranks, {"count": int(counts[0].strip("x×"))}
    if len(words) > 1:
        raise UserError(f"one rank set after {verb.value}, as in `{verb.value} 0-1`; "
                         f"got {' '.join(words)}")  # fmt: skip
    return (words[0] if words else None), {}


def verb_meant(verb: Verb, words: Sequence[str]) -> Verb:
    """Return the verb that is meant: ``break`` alone lists the breakpoints, as in pdb."""
    return Verb.BREAKS if verb in (Verb.BREAK, Verb.TBREAK, Verb.WATCH) and not words else verb


def inspect_words(word: str, rest: str) -> _Said:
    """Parse ``p loss on 0-1``, ``compare model.head.weight.norm()``, ``compare --hash grads``:
    return (ranks, or None for the caller's choice; kind and expression). Raises UserError."""
    ranks = None
    head, found, last = f" {rest}".rpartition(" on ")
    if found and " " not in last.strip():
        ranks, rest = last.strip(), head
    kind, expr = word, rest.strip()
    if kind == DAP:
        if expr and ranks is not None:
            raise UserError("dap RANK: as in `dap 2`")
        return ranks or expr or None, {"kind": kind}
    if kind in PLAIN and expr:
        if ranks is not None or " " in expr:
            raise UserError(f"{word} [on RANKS]: as in `{word} on 0-1`")
        ranks, expr = expr, ""
    if word == COMPARE:
        ranks = ranks or "held"
        kind = "p"
        if expr.startswith("--hash"):
            kind, expr = "hash", expr.removeprefix("--hash").strip() or "params"
    if not expr and kind not in PLAIN:
        raise UserError(f"{word} EXPR [on RANKS]: as in `{word} loss`")
    return ranks, {"kind": kind, "expr": expr}


def _condition(verb: Verb, words: Sequence[str]) -> _Said:
    """Parse a condition; ``on`` before the last word begins the rank set: no field is called so."""
    ranks = None
    if len(words) > 2 and words[-2] == "on":
        ranks, words = words[-1], words[:-2]
    return ranks, {"expr": _parsed(verb, " ".join(words))}


def _parsed(verb: Verb, text: str) -> str:
    """Return the text, once it parses: a script learns of a mistake at once."""
    if not text.strip():
        example = "slow>5" if verb is Verb.WATCH else "action==B and mb==3"
        raise UserError(f"{verb.value} {USAGE[verb]}: as in `{verb.value} {example}`")
    # ``condition`` may be about a watch: the hub knows which it is.
    if verb is Verb.WATCH or (verb is Verb.CONDITION and text.split(">")[0].strip() in WATCH_KINDS):
        parse_watch(text)
        return text
    if action := parse_action(text.upper()):  # 2B3, as screens write it
        text = f"action=={action.text}"
    parse(text)
    return text


def _count(verb: Verb, words: Sequence[str]) -> int:
    number = whole(words[0], 10**9 - 1) if words else None
    if number is None:
        said = f", not {words[0]!r}" if words else ""
        raise UserError(f"{verb.value} {USAGE[verb]}: a number of a breakpoint{said}")
    return number


def _exactly(verb: Verb, words: Sequence[str], number: int) -> None:
    if len(words) != number:
        raise UserError(f"{verb.value} {USAGE[verb]}: got {' '.join(words) or 'nothing'}")


def _time(text: str) -> int:
    try:
        delay_ns = parse_duration(text)
    except ValueError:
        delay_ns = MAX_DELAY_NS + 1
    if delay_ns > MAX_DELAY_NS:
        raise UserError(f"a delay is 50ms or 0.2s, at most 60s; got {text!r}")
    return delay_ns


def at_module(name: str, forward: bool, own: Sequence[tuple[int, str]] = ()) -> str:
    """Return the condition of a breakpoint at the end of a module's forward, or at the arrival of
    its output's gradient. ``own``: (rank, the module's name there) where the name differs."""
    names = [f'module=="{other}" and rank=={rank}' for rank, other in own]
    named = f"({' or '.join(names)})" if names else f'module=="{name}"'
    return f"{named} and action=={'F' if forward else 'B'}"


def parse_watch(text: str) -> tuple[str, float]:
    """Return (kind, limit in the kind's unit: times, ns, bytes). Raises UserError, one line."""
    said = text.strip()
    match = _WATCH.fullmatch(said)
    if match is None or match["kind"] not in WATCH_KINDS:
        if said.split()[:1] == ["same"]:
            raise UserError("from a shell: pardbg ctl RUN watch same REF.mcap")
        raise UserError(f"cannot watch {said[:30]!r}: {_EXAMPLES}" if said else
                        f"watch what? {_EXAMPLES}")  # fmt: skip
    kind = match["kind"]
    units = _LIMITS.get(kind)
    if units is None:
        if match["op"]:
            raise UserError(f"{kind} has no limit: watch {kind}")
        return kind, 0.0
    if match["op"] != ">" or match["number"] is None:
        example = next(word for word in _EXAMPLES.split(", ") if word.startswith(kind))
        raise UserError(f"{kind} needs a limit, as in `watch {example}`")
    if match["unit"] not in units:
        fits = ", ".join(filter(None, units))
        what = f"no unit {match['unit'][:12]!r}" if match["unit"] else "a unit is missing"
        raise UserError(f"{what} in {said[:30]!r}: {fits}")
    limit = float(match["number"]) * units[match["unit"]]
    if not limit < _MOST:
        raise UserError(f"{said[:30]!r} is out of range")
    return kind, limit


def _level(words: Sequence[str]) -> _Said:
    if not words or words[0] not in LEVELS:
        raise UserError(f"level is {', '.join(LEVELS)}, as in `level full 0-3 30s`")
    args: dict[str, Any] = {"level": words[0]}
    rest = list(words[1:])
    if rest and (match := _WHILE.fullmatch(rest[-1])):
        args["for_s"] = float(match[1]) * (60 if match[2] == "m" else 1)
        rest.pop()
    if len(rest) > 1:
        raise UserError(f"level takes one rank set and a time, not {' '.join(rest)!r}")
    return (rest[0] if rest else None), args
