"""EXPR: conditions on a rank's next op or action, as text: ``action==B and mb==3 and stage==2``.

Text becomes a small tree of known nodes; nothing is ever evaluated as Python. A field is one of
FIELDS; any other bare word is text to compare with (``op==all_reduce``, ``axis==dp``). A field that
is unknown at a gate (a collective has no microbatch) makes a comparison *unknown*, and unknown is
no match, under ``not`` too. ``agent/pardbg_agent/control/breaks.py`` runs the tree.

    or  and  not  == != < <= > >= in (a, b)  + - * / %  ( )  1e6 64MiB 50ms  word "text"
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pardbg.errors import UserError
from pardbg.words import SIZE_UNITS, TIME_UNITS
from pardbg_agent.wire import EXPR_MAX_DEPTH, EXPR_MAX_NODES, EXPR_NUMBERS, EXPR_TEXTS, Gate

MAX_TEXT: Final = 400
MAX_WORD: Final = 80
FIELDS: Final = EXPR_NUMBERS | EXPR_TEXTS
UNITS: Final = {
    **{unit: ns / 1e9 for unit, ns in TIME_UNITS.items()},
    **{unit.lower(): num_bytes for unit, num_bytes in SIZE_UNITS.items()},
}
"""Factors of units: times in seconds, sizes in bytes."""
_ALIASES: Final = {"microbatch": "mb", "group": "pg", "size": "bytes"}
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<action>\d{1,6}[FBIW]\d{1,6})\b"
    r"|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?P<unit>[A-Za-zµ]*)"
    r"|(?P<word>[A-Za-z_][\w.]*)|(?P<text>\"[^\"]*\"|'[^']*')"
    r"|(?P<op>==|!=|<=|>=|&&|\|\||[<>=!()+\-*/%,]))",
    re.ASCII,
)
_COMPARE: Final = ("==", "!=", "<", "<=", ">", ">=")
_SAME: Final = {"&&": "and", "||": "or", "!": "not", "=": "=="}

Tree = tuple[object, ...]
"""Nodes: ``("and"|"or", a, b)``, ``("not", a)``, ``(compare, a, b)``, ``("in", a, (b, …))``,
``(arithmetic, a, b)``, ``("neg", a)``, ``("field", name)``, ``("num", x)``, ``("text", s)``."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """Kind of token: number, word, text, action, op or end."""
    value: str
    at: int
    number: float = 0.0


def parse(text: str) -> Tree:
    """Parse a condition to its tree. Raises UserError."""
    if len(text) > MAX_TEXT:
        raise UserError(f"the condition is longer than {MAX_TEXT} characters")
    parser = _Parser(_tokens(text))
    tree = parser.either(0)
    parser.end()
    if _kind(tree) != "truth":
        raise UserError("a condition compares something, as in step==100 or bytes>1e6")
    if not fields(tree):
        raise UserError("a condition compares a field, as in step==100 or bytes>1e6")
    if _size(tree) > EXPR_MAX_NODES:
        raise UserError("the condition is too long: set several breakpoints")
    return tree


def gates(tree: Tree) -> int:
    """Return the gate classes (wire.Gate) at which the condition can become true."""
    names = fields(tree)
    if names & {"name", "module"}:
        return int(Gate.BREAK)
    ops = int(Gate.COLLECTIVE | Gate.SEND | Gate.RECV)
    if names & {"seq", "bytes", "dtype", "op", "pg", "axis", "peer"}:
        return ops  # with an action's name: its sends and receives
    if "action" in names:
        return int(Gate.ACTION)
    if names & {"mb", "stage"}:
        return int(Gate.ACTION) | ops
    return int(Gate.ACTION | Gate.STEP | Gate.OPTIMIZER) | ops


def fields(tree: Tree) -> set[str]:
    """Return the names of the fields that a condition uses."""
    if tree[0] == "field":
        return {str(tree[1])}
    found: set[str] = set()
    for part in tree[1:]:
        if isinstance(part, tuple):
            parts = part if part and isinstance(part[0], tuple) else (part,)
            found.update(*(fields(p) for p in parts))
    return found


def _size(tree: Tree) -> int:
    """Return the number of nodes, as a rank counts them (``pardbg_agent.control.breaks``)."""
    below = [part for part in tree[1:] if isinstance(part, tuple)]
    if tree[0] == "in":
        below = [below[0], *below[1]]
    return 1 + sum(map(_size, below))


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise UserError(f"cannot read {text[at : at + 12].strip()!r} at column {at + 1}")
        tokens.append(_token(match))
        at = match.end()
    return [*tokens, _Token("end", "the end", len(text))]


def _token(match: re.Match[str]) -> _Token:
    start = match.end() - len(match[0].lstrip())
    if match["number"] is not None:
        unit = match["unit"].lower()
        if unit and unit not in UNITS:
            where = f"{match['unit']!r} at column {start + 1}"
            raise UserError(f"no unit {where}: use ms, s, MiB, GB …")
        value = float(match["number"]) * (UNITS[unit] if unit else 1.0)
        return _Token("number", match[0].strip(), start, value)
    for kind in ("action", "word", "text", "op"):
        found = match[kind]
        if found is not None:
            if len(found) > MAX_WORD:
                raise UserError(f"{found[:12]}… at column {start + 1} is too long")
            value_text = found[1:-1] if kind == "text" else _SAME.get(found, found)
            return _Token(kind, value_text, start)
    raise UserError(f"cannot read column {start + 1}")


class _Parser:
    """Recursive-descent parser; depth and size are bounded, so the recursion is."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens, self._next = tokens, 0

    def either(self, depth: int) -> Tree:
        """Return the tree of ``a or b``."""
        return self._joined("or", depth)

    def end(self) -> None:
        token = self._tokens[self._next]
        if token.kind != "end":
            raise UserError(f"{token.value!r} at column {token.at + 1} does not belong there")

    def _joined(self, word: str, depth: int) -> Tree:
        left = self._part(word, depth)
        while self._take(word):
            right = self._part(word, depth)
            left = _node(word, _truth(left, word), _truth(right, word))
        return left

    def _part(self, word: str, depth: int) -> Tree:
        return self._joined("and", depth) if word == "or" else self._not(depth)

    def _not(self, depth: int) -> Tree:
        self._deep(depth)
        if self._take("not"):
            return _node("not", _truth(self._not(depth + 1), "not"))
        return self._comparison(depth)

    def _comparison(self, depth: int) -> Tree:
        left = self._sum(depth)
        token = self._tokens[self._next]
        if token.value == "in" and token.kind == "word":
            self._next += 1
            return self._member(left, depth)
        if token.kind != "op" or token.value not in _COMPARE:
            return left
        self._next += 1
        return self._compared(token, left, self._sum(depth))

    def _compared(self, token: _Token, left: Tree, right: Tree) -> Tree:
        if left == ("field", "action") and right[0] == "action" and token.value == "==":
            stage, kind, mb = right[1:]
            return _node("and", _node("and",
                ("==", ("field", "stage"), ("num", float(str(stage)))),
                ("==", ("field", "action"), ("text", kind))),
                ("==", ("field", "mb"), ("num", float(str(mb)))))  # fmt: skip
        if "action" in (left[0], right[0]):
            raise UserError("2B5 goes after action==, nowhere else")
        left_kind, right_kind = _kind(left), _kind(right)
        if {left_kind, right_kind} - {"number", "words"} or left_kind != right_kind:
            why = _no_field(left, right, "one is text, the other a number")
            raise UserError(f"{_show(left)} {token.value} {_show(right)}: {why}")
        if left_kind == "words" and token.value not in ("==", "!="):
            raise UserError(f"{_show(left)} is text: compare it with == or !=, or use in (…)")
        if not {left[0], right[0]} - {"text", "num"}:
            raise UserError(_no_field(left, right))
        return _node(token.value, left, right)

    def _member(self, left: Tree, depth: int) -> Tree:
        self._expect("(")
        members = [self._sum(depth)]
        while self._take(","):
            members.append(self._sum(depth))
        self._expect(")")
        if left[0] == "action":
            raise UserError("2B5 goes after action==, nowhere else")
        for member in members:
            if member[0] not in ("num", "text") or _kind(member) != _kind(left):
                raise UserError(f"{_show(left)} in (…) takes {_kind(left)}, not {_show(member)}")
        if left[0] in ("num", "text"):
            raise UserError(_no_field(left, members[0]))
        return _node("in", left, tuple(members))

    def _sum(self, depth: int, signs: tuple[str, ...] = ("+", "-")) -> Tree:
        products = "*" in signs
        left = self._sign(depth) if products else self._sum(depth, ("*", "/", "%"))
        while (token := self._tokens[self._next]).kind == "op" and token.value in signs:
            self._next += 1
            right = self._sign(depth) if products else self._sum(depth, ("*", "/", "%"))
            for side in (left, right):
                if _kind(side) != "number":
                    raise UserError(
                        f"{_show(side)} is not a number: it cannot be added or multiplied"
                    )
            left = _node(token.value, left, right)
        return left

    def _sign(self, depth: int) -> Tree:
        self._deep(depth)
        if self._take("-"):
            return _node("neg", self._sign(depth + 1))
        return self._atom(depth)

    def _atom(self, depth: int) -> Tree:
        token = self._tokens[self._next]
        self._next += 1
        if token.kind == "number":
            return _node("num", token.number)
        if token.kind == "text":
            return _node("text", token.value)
        if token.kind == "action":
            found = re.fullmatch(r"(\d+)([FBIW])(\d+)", token.value)
            assert found is not None
            return _node("action", found[1], found[2], found[3])
        if token.kind == "word" and token.value not in ("and", "or", "not", "in"):
            name = _ALIASES.get(token.value, token.value)
            return _node("field", name) if name in FIELDS else _node("text", token.value)
        if token.value == "(" and token.kind == "op":
            inner = self._joined("or", depth + 1)
            self._expect(")")
            return inner
        raise UserError(f"{token.value!r} at column {token.at + 1}: a field or a value goes there")

    def _take(self, value: str) -> bool:
        token = self._tokens[self._next]
        if token.kind in ("op", "word") and token.value == value:
            self._next += 1
            return True
        return False

    def _expect(self, value: str) -> None:
        if not self._take(value):
            token = self._tokens[self._next]
            raise UserError(f"{value!r} is missing before {token.value!r}, column {token.at + 1}")

    def _deep(self, depth: int) -> None:
        if depth > EXPR_MAX_DEPTH:
            raise UserError(f"more than {EXPR_MAX_DEPTH} brackets or signs inside one another")


def _node(*parts: object) -> Tree:
    return parts


def _kind(tree: Tree) -> str:
    if tree[0] in ("and", "or", "not", "in", *_COMPARE):
        return "truth"
    if tree[0] == "field":
        return "number" if tree[1] in EXPR_NUMBERS else "words"
    return "words" if tree[0] in ("text", "action") else "number"


def _truth(tree: Tree, word: str) -> Tree:
    if _kind(tree) != "truth":
        raise UserError(f"{word!r} joins conditions, and {_show(tree)} is none: compare it")
    return tree


def _no_field(left: Tree, right: Tree, otherwise: str = "compare a field, as in step==100") -> str:
    """Return the reason why a comparison has no field: text on one side may be meant for one."""
    from difflib import get_close_matches

    word = next((str(side[1]) for side in (left, right) if side[0] == "text"), None)
    if word is None:
        return otherwise
    near = get_close_matches(word, sorted(FIELDS), 1)
    hint = f"did you mean {near[0]!r}?" if near else f"fields: {', '.join(sorted(FIELDS))}"
    return f"no field {word!r}: {hint}"


def _show(tree: Tree) -> str:
    if tree[0] in ("field", "text", "num"):
        return f"{tree[1]:g}" if isinstance(tree[1], float) else str(tree[1])
    return "".join(map(str, tree[1:])) if tree[0] == "action" else "(…)"
