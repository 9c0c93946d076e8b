"""Texts that people and files give: expressions, watches, goto, rank sets, verbs, rc lines."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import msgpack

from pardbg.control.language.arguments import inspect_words, parse_watch, verb_meant, verb_words
from pardbg.control.language.expr import fields, gates, parse
from pardbg.control.language.ranksets import Known, RankFacts, resolve
from pardbg.errors import UserError
from pardbg.events.control_codes import Verb
from pardbg.session.navigation import goto
from pardbg.words import parse_duration, parse_size
from pardbg_agent.control.breaks import compile_tree
from pardbg_agent.wire import EXPR_NUMBERS, EXPR_TEXTS
from tests.harness import Found
from tests.siege.limited import here
from tests.siege.values import NUMBERS, TEXTS

WORDS = (
    "mb", "==", "3", "and", "or", "not", "(", ")", "stage", "<", ">", ">=", "+", "-", "*", "/", "%",
    "1e6", "1e999", "2B3", "op", "all_reduce", '"x"', "'", "in", "0-3", "0-", "-1", "0-99999999999",
    "tp=0", "stage=2", "host=n1", "all", "held", "waiting", "culprit", ",", "nan", "mismatch",
    "slow>3x", "skew>5ms", "memory>80%", "diverge", "every", "10", "step", "finding", "end", "50%",
    "+3s", "-2ms", "12:00", "25:99", "mark", "on", "ignore", "999999999999999999999", "\x00", "λ",
    "0" * 300, "((((", "not " * 50, "!", "ms", "1h", "hold", "full", "30s", "_", ".", "[", "]",
)  # fmt: skip
MAX_S = 0.5
RANKS = Known({rank: RankFacts(rank) for rank in range(8)})


def text(rng: random.Random) -> str:
    pool = [*WORDS, *TEXTS, *map(str, NUMBERS)]
    glue = rng.choice((" ", " ", "", ","))
    made = glue.join(rng.choice(pool) for _ in range(rng.choice((1, 2, 3, 5, 9))))
    if rng.random() < 0.02:
        made *= rng.choice((50, 500))
    return made


FACTS: tuple[dict[str, Any], ...] = (
    {}, dict.fromkeys(EXPR_NUMBERS, 0) | dict.fromkeys(EXPR_TEXTS, ""),
    dict.fromkeys(EXPR_NUMBERS, 3) | dict.fromkeys(EXPR_TEXTS, "F"),
    {"loss": float("nan"), "bytes": 1 << 62, "rank": 2, "op": "all_reduce"},
)  # fmt: skip
"""What a rank knows at a gate."""
_NUMBERS = ("0", "3", "1e6", "64MiB", "50ms", ".5", "999999", "1e300", "7.25")
_TEXTS = ("all_reduce", "'x y'", '"F"', "dp", "float32", "n1")


def expression(rng: random.Random, depth: int = 0) -> str:
    """A condition by the grammar; some are too deep, too long, or compare what cannot be."""
    kind = rng.randrange(10)
    if depth > 5 or kind < 5:
        return _comparison(rng, depth)
    if kind == 5:
        return f"not {expression(rng, depth + 1)}"
    if kind == 6:
        return f"({expression(rng, depth + 1)})"
    word = rng.choice((" and ", " or ", "&&", "||"))
    return word.join(expression(rng, depth + 1) for _ in range(rng.choice((2, 2, 3))))


def _comparison(rng: random.Random, depth: int) -> str:
    if rng.random() < 0.15:
        return f"action=={rng.randrange(99)}{rng.choice('FBIW')}{rng.randrange(99)}"
    numbers = rng.random() < 0.6
    field = rng.choice(sorted(EXPR_NUMBERS if numbers else EXPR_TEXTS))
    values = _NUMBERS if numbers else _TEXTS
    if rng.random() < 0.02:
        values = (*_NUMBERS, *_TEXTS, *WORDS)
    if rng.random() < 0.2:
        return f"{field} in ({', '.join(rng.choices(values, k=rng.randrange(1, 9)))})"
    if not numbers:
        return f"{field}{rng.choice(('==', '!=', ' = '))}{rng.choice(values)}"
    left = field
    while rng.random() < 0.3:
        left = f"{rng.choice(('-', ''))}({left}{rng.choice('+-*/%')}{rng.choice(values)})"
    return f"{left}{rng.choice(('==', '!=', '<', '<=', '>', '>='))}{rng.choice(values)}"


def expressions(seed: int, count: int) -> Found:
    """Try conditions: most by the grammar, some with one word replaced; half of them parse. A rank
    takes each that parses, and asks it."""
    rng, good, bad, slowest = random.Random(seed), 0, [], 0.0
    for _ in range(count):
        said = expression(rng)
        if rng.random() < 0.3:
            words = said.split(" ")
            words[rng.randrange(len(words))] = rng.choice(WORDS)
            said = " ".join(words)
        outcome = here(partial(_ask, said))
        good, slowest = good + (outcome.text == "ok"), max(slowest, outcome.cpu_s)
        if outcome.bad:
            bad.append(f"{said[:80]!r}: {outcome.bad}")
    return count, bad + [f"only {good:,} of {count:,} parse"] * (2 * good < count), slowest


def _ask(said: str) -> None:
    tree = parse(said)
    assert fields(tree) and gates(tree)
    matches = compile_tree(msgpack.unpackb(msgpack.packb(tree)))
    assert {matches(known) for known in FACTS} <= {True, False, None}


def _verb(said: str, rng: random.Random) -> Any:
    words = said.split()
    verb = verb_meant(rng.choice(list(Verb)), words)
    return verb_words(verb, words)


READERS: dict[str, Callable[[str, random.Random], Any]] = {
    "expression": lambda said, rng: parse(said),
    "watch": lambda said, rng: parse_watch(said),
    "goto": lambda said, rng: goto.parse(said),
    "duration": lambda said, rng: parse_duration(said),
    "size": lambda said, rng: parse_size(said),
    "rank set": lambda said, rng: resolve(said, RANKS),
    "verb": _verb,
    "inspect": lambda said, rng: inspect_words(rng.choice(("p", "list", "tensor")), said),
}  # fmt: skip


def run(seed: int, count: int) -> Found:
    """Try texts, each on one of the readers; a reader may refuse."""
    rng, bad, slowest = random.Random(seed), [], 0.0
    names = list(READERS)
    for number in range(count):
        name, said = names[number % len(names)], text(rng)
        outcome = here(partial(_read, name, said, rng))
        slowest = max(slowest, outcome.cpu_s)
        if why := outcome.bad or (f"{outcome.cpu_s:.1f} s" if outcome.cpu_s > MAX_S else ""):
            bad.append(f"{name} {said[:60]!r}: {why}")
    return count, bad, slowest


def _read(name: str, said: str, rng: random.Random) -> None:
    with contextlib.suppress(UserError, ValueError):
        READERS[name](said, rng)
