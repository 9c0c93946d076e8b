"""Conditions against Python's own arithmetic and three-valued logic, on drawn facts."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import msgpack
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pardbg.control.language.expr import parse
from pardbg.errors import UserError
from pardbg_agent.control.breaks import compile_tree
from pardbg_agent.wire import EXPR_NUMBERS, EXPR_TEXTS

Facts = dict[str, Any]
Part = tuple[str, Callable[[Facts], Any]]
"""A text, and what Python makes of it; None: not known."""
COMPARE = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
           ">": operator.gt, ">=": operator.ge}  # fmt: skip
ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
              "%": operator.mod}  # fmt: skip
WORDS = ("all_reduce", "F", "dp", "float32")


def field(name: str) -> Part:
    return name, lambda facts: facts.get(name)


def joined(sign: str, function: Callable[[Any, Any], Any], a: Part, b: Part) -> Part:
    def value(facts: Facts) -> Any:
        left, right = a[1](facts), b[1](facts)
        if left is None or right is None:
            return None
        try:
            return function(left, right)
        except (ZeroDivisionError, OverflowError):
            return None

    return f"({a[0]} {sign} {b[0]})", value


def constant(text: str, value: Any) -> Part:
    return text, lambda facts: value


numbers: SearchStrategy[Part] = st.recursive(
    st.sampled_from(sorted(EXPR_NUMBERS)).map(field)
    | st.integers(0, 9).map(lambda n: constant(str(n), float(n)))
    | st.sampled_from([("2ms", 0.002), ("1KiB", 1024.0), ("1e300", 1e300)]).map(
        lambda pair: constant(*pair)
    ),
    lambda below: st.builds(
        lambda sign, a, b: joined(sign, ARITHMETIC[sign], a, b),
        st.sampled_from(sorted(ARITHMETIC)), below, below,
    ),
    max_leaves=4,
)  # fmt: skip
texts = st.builds(
    lambda name, sign, word: joined(sign, COMPARE[sign], field(name), constant(word, word)),
    st.sampled_from(sorted(EXPR_TEXTS)), st.sampled_from(("==", "!=")), st.sampled_from(WORDS),
)  # fmt: skip
comparisons = st.builds(
    lambda sign, a, b: joined(sign, COMPARE[sign], a, b),
    st.sampled_from(sorted(COMPARE)), numbers, numbers,
)  # fmt: skip


def negated(part: Part) -> Part:
    def value(facts: Facts) -> bool | None:
        found = part[1](facts)
        return None if found is None else not found

    return f"not {part[0]}", value


def decided(word: str, a: Part, b: Part) -> Part:
    def value(facts: Facts) -> bool | None:
        known = (a[1](facts), b[1](facts))
        decides = word == "or"
        return decides if decides in known else None if None in known else not decides

    return f"({a[0]} {word} {b[0]})", value


conditions = st.recursive(
    texts | comparisons,
    lambda below: (
        below.map(negated) | st.builds(decided, st.sampled_from(("and", "or")), below, below)
    ),
    max_leaves=5,
)
facts = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(EXPR_NUMBERS, st.integers(-3, 9) | st.floats()),
        **dict.fromkeys(EXPR_TEXTS, st.sampled_from(WORDS)),
    },
)


@settings(max_examples=150, phases=(Phase.generate, Phase.shrink))
@given(conditions, facts)
def test_a_condition_is_what_python_says(condition: Part, facts: Facts) -> None:
    text, meaning = condition
    try:
        tree = parse(text)
    except UserError:
        return  # compares no field, or is too long
    assert compile_tree(msgpack.unpackb(msgpack.packb(tree)))(facts) is meaning(facts)
