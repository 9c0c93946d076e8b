"""Breakpoints of this rank: conditions on the next op or action, evaluated before each gate.

The hub sends a tree of known nodes (pardbg.control.language.expr makes it of text). It is compiled
to closures; nothing is evaluated as code. An unknown field (a collective has no stage) is None and
makes a comparison None: no match, not even under ``not``. Runs on the training's threads: no lock,
and one look-up in a table of each field that breakpoints of the gate's class compare for equality,
before anything else (ten that do not match cost about 1 us)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pardbg_agent.ctrl.agent_messages import BreakAt
from pardbg_agent.wire import EXPR_MAX_DEPTH, EXPR_MAX_NODES, EXPR_NUMBERS, EXPR_TEXTS, MAX_BREAKS

Facts = Mapping[str, Any]
Evaluate = Callable[[Facts], Any]

_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_ARITHMETIC: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "%": operator.mod,
}  # fmt: skip
_MAX_TEXT: Final = 80
EVENT_FIELDS: Final = frozenset(
    ("op", "action", "pg", "axis", "dtype", "name", "module", "stage", "mb", "seq", "bytes", "peer")
)
"""Fields of the next op or action, which differ between the gates of a step."""


class BadTree(ValueError):
    """Condition that this agent does not know."""


@dataclass(slots=True, eq=False)
class Break:
    number: int
    gates: int
    equal: tuple[tuple[str, Any], ...]
    """Fields that must have these values, most selective first: the first one is looked up before
    ``matches`` is evaluated."""
    matches: Evaluate
    ignore: int
    """Matches still to be skipped."""
    ignore_asked: int
    once: bool
    per_step: bool
    """Whether no field of the condition changes from gate to gate: it can match once in a step."""
    of_module: bool
    """Whether the condition names a module: modules are hooked for it."""
    hits: int = 0
    step: int = -1
    """Step of the last match."""


Wanted = tuple[tuple[str, dict[Any, tuple[tuple[int, Break], ...]]], ...]


@dataclass(frozen=True, slots=True)
class _Gate:
    """Breakpoints of one class of gates, by the first field that must be equal."""

    wanted: Wanted
    """(field, value -> breakpoints with their places in the list)."""
    always: tuple[tuple[int, Break], ...]
    """Breakpoints without such a field."""
    base: bool
    """Whether the key's first fields are known at any gate (the step), not only in the next op."""


class Breaks:
    """All breakpoints of the rank; replaced as a whole by each SetBreaks message."""

    def __init__(self, breaks: Sequence[Break]) -> None:
        self._by_gate = {
            1 << bit: _gate([b for b in breaks if b.gates & 1 << bit]) for bit in range(8)
        }
        self._all = tuple(breaks)
        self.gates = 0
        self.modules = any(one.of_module for one in breaks)
        for one in breaks:
            self.gates |= one.gates

    def first_hit(
        self, gate: int, facts: Callable[[], Facts] | None, base: Callable[[], Facts] = dict
    ) -> Break | None:
        """Return the first breakpoint that matches the next op or action and is not ignored.
        ``facts`` returns its fields; ``base`` those known at any gate, called only if needed."""
        table = self._by_gate.get(gate)
        if table is None:
            return None
        known = facts() if facts is not None else {}
        if table.base:
            known = {**base(), **known}
        likely = table.always
        for key, values in table.wanted:
            found = values.get(known.get(key))
            if found is not None:
                likely += found
        return _first_of(likely, known if table.base else {**base(), **known}) if likely else None

    def hits(self) -> dict[int, int]:
        """Return number -> matches so far, for breakpoints with matches."""
        return {one.number: one.hits for one in self._all if one.hits}

    def keep_counts(self, old: Breaks) -> None:
        """Continue the counts of the breakpoints that were in the list before."""
        before = {one.number: one for one in old._all}
        for one in self._all:
            was = before.get(one.number)
            if was is not None:
                one.hits, one.step = was.hits, was.step
                if one.ignore_asked == was.ignore_asked:
                    one.ignore = was.ignore


def _gate(breaks: Sequence[Break]) -> _Gate | None:
    wanted: dict[str, dict[Any, tuple[tuple[int, Break], ...]]] = {}
    always: tuple[tuple[int, Break], ...] = ()
    for place, one in enumerate(breaks):
        if one.equal:
            key, value = one.equal[0]
            values = wanted.setdefault(key, {})
            values[value] = (*values.get(value, ()), (place, one))
        else:
            always += ((place, one),)
    base = bool(always) or not wanted.keys() <= EVENT_FIELDS
    return _Gate(tuple(wanted.items()), always, base) if breaks else None


def _first_of(likely: Sequence[tuple[int, Break]], known: Facts) -> Break | None:
    for _, one in sorted(likely, key=operator.itemgetter(0)):
        if one.matches(known) is True and _counts(one, known.get("step", -1)):
            return one
    return None


def _counts(one: Break, step: int) -> bool:
    if one.per_step and one.step == step:
        return False
    one.step = step
    one.hits += 1
    if one.ignore:
        one.ignore -= 1
        return False
    if one.once:
        one.matches = _constant(False)
    return True


def breaks_of(asked: Sequence[BreakAt]) -> Breaks:
    """Compile the breakpoints of a SetBreaks. Raises BadTree."""
    if len(asked) > MAX_BREAKS:
        raise BadTree("too many breakpoints")
    return Breaks([_break(one) for one in asked])


def _break(asked: BreakAt) -> Break:
    matches = compile_tree(asked.tree)  # first: _names needs a well-formed tree
    ignore, names = max(0, asked.ignore), _names(asked.tree)
    return Break(
        asked.number, asked.gates, tuple(sorted(_equalities(asked.tree), key=_telling)),
        matches, ignore, ignore, asked.once, not names & EVENT_FIELDS,
        "module" in names,
    )  # fmt: skip


def compile_tree(tree: Any) -> Evaluate:
    """Return a function of facts to True, False or None (not known). Raises BadTree."""
    budget = [EXPR_MAX_NODES]
    return _compile(tree, budget, 0)


def _compile(tree: Any, budget: list[int], depth: int) -> Evaluate:
    budget[0] -= 1
    if budget[0] < 0 or depth > 2 * EXPR_MAX_DEPTH + EXPR_MAX_NODES:
        raise BadTree("too large")
    if not isinstance(tree, (list, tuple)) or not tree or not isinstance(tree[0], str):
        raise BadTree("no tree")
    head, parts = tree[0], tree[1:]
    if head == "field" and len(parts) == 1 and parts[0] in tuple(EXPR_NUMBERS | EXPR_TEXTS):
        return operator.methodcaller("get", parts[0])
    if head == "num" and len(parts) == 1 and _is_number(parts[0]):
        return _constant(float(parts[0]))
    if head == "text" and len(parts) == 1 and isinstance(parts[0], str):
        return _constant(parts[0][:_MAX_TEXT])
    if head == "in" and len(parts) == 2 and isinstance(parts[1], (list, tuple)):
        members = [_compile(part, budget, depth + 1)({}) for part in parts[1]]
        return _one(frozenset(members).__contains__, _compile(parts[0], budget, depth + 1))
    below = [_compile(part, budget, depth + 1) for part in parts]
    if head in ("not", "neg") and len(below) == 1:
        return _one(operator.not_ if head == "not" else operator.neg, below[0])
    if head in ("and", "or") and len(below) == 2:
        return _joined(head == "or", *below)
    if len(below) == 2 and (head in _COMPARE or head in _ARITHMETIC):
        return _two(_COMPARE.get(head) or _ARITHMETIC[head], *below)
    raise BadTree("unknown node")


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 64)


def _equalities(tree: Any) -> list[tuple[str, Any]]:
    """Return every ``field == constant`` that a (well-formed) condition requires."""
    if tree[0] == "and":
        return _equalities(tree[1]) + _equalities(tree[2])
    if tree[0] == "==":
        for field, other in ((tree[1], tree[2]), (tree[2], tree[1])):
            if field[0] == "field" and other[0] in ("num", "text"):
                return [(field[1], other[1])]
    return []


def _telling(equality: tuple[str, Any]) -> int:
    """Return the sort key of an equality, most selective first: numbers tell more gates apart than
    words, and fields of the next op more than those that stay for long."""
    name = equality[0]
    return 2 if name not in EXPR_NUMBERS else 0 if name in EVENT_FIELDS else 1


def _names(tree: Any) -> set[str]:
    if tree[0] == "field":
        return {tree[1]}
    if tree[0] in ("num", "text"):
        return set()
    return set().union(*(_names(part) for part in tree[1:] if isinstance(part[0], str)))


def _constant(value: Any) -> Evaluate:
    return lambda facts: value


def _one(function: Callable[[Any], Any], below: Evaluate) -> Evaluate:
    def evaluate(facts: Facts) -> Any:
        value = below(facts)
        return None if value is None else function(value)

    return evaluate


def _joined(decides: bool, left: Evaluate, right: Evaluate) -> Evaluate:
    """Return ``or`` (True decides) or ``and`` (False decides); None means unknown."""

    def evaluate(facts: Facts) -> Any:
        value = left(facts)
        if value is decides:
            return decides
        other = right(facts)
        return decides if other is decides else None if value is None or other is None else other

    return evaluate


def _two(function: Callable[[Any, Any], Any], left: Evaluate, right: Evaluate) -> Evaluate:
    def evaluate(facts: Facts) -> Any:
        a, b = left(facts), right(facts)
        if a is None or b is None:
            return None
        try:
            return function(a, b)
        except (TypeError, ZeroDivisionError, OverflowError):
            return None

    return evaluate
