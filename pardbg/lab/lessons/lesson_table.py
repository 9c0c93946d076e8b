"""Reader of ``lessons.txt``: lessons, their ideas, and arithmetic over named numbers."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Let:
    """A named number of an idea."""

    symbol: str
    of: str
    """A figure; or an expression over earlier symbols, of kind ``kind``."""
    recording: str = ""
    """Name of the run that the figure is from; empty: the idea's own."""
    kind: str | None = None
    """Kind of an expression's value; None: it is a figure."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A predicted value, with the observed one to compare."""

    label: str
    expression: str
    seen: str
    """Expression for the observed value; empty: there is none."""
    unit: str
    relation: str
    """Expected relation: ``= 2%``: equal within 2%; ``>=`` ``<=``: observed at least, at most."""
    note: str = ""


@dataclass(slots=True)
class Idea:
    """A page of a lesson."""

    recording: str
    title: str
    page: str = "overview"
    ticks: bool = False
    goto: str = ""
    unit: str = "step"
    """Unit that a key moves by."""
    lets: list[Let] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    """Paragraphs."""
    formulas: list[Formula] = field(default_factory=list)
    question: str = ""
    choices: list[tuple[str, str]] = field(default_factory=list)
    """(text, condition under which the answer is right)"""
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Lesson:
    name: str
    """A short word."""
    title: str
    ideas: list[Idea]

    @property
    def recordings(self) -> tuple[str, ...]:
        """Return the runs that the lesson shows or calculates with."""
        own = [idea.recording for idea in self.ideas]
        others = [let.recording for idea in self.ideas for let in idea.lets if let.recording]
        return tuple(dict.fromkeys(own + others))


@cache
def lessons() -> tuple[Lesson, ...]:
    """Return all lessons, in order."""
    found: list[Lesson] = []
    for line in _lines():
        sign, _, rest = line.partition(" ")
        cells = [cell.strip() for cell in rest.split("|")] if sign in _CELLS else [rest]
        if sign == "#":
            found.append(Lesson(cells[0], cells[1], []))
        elif sign == "##":
            found[-1].ideas.append(Idea(cells[0], cells[1]))
        elif found:
            _take(found[-1].ideas[-1], sign, cells, line)
    return tuple(found)


def demo_arguments(recording: str) -> list[str]:
    """Return the arguments of ``pardbg demo`` that make a recording."""
    for line in _lines():
        name, _, made = line.removeprefix("run ").partition(" | ")
        if line.startswith("run ") and name == recording:
            return made.split()
    return [recording, "--steps", "9"]


_CELLS: Final = ("#", "##", "at", "=", "-")


def _lines() -> Iterator[str]:
    file = resources.files("pardbg.lab.lessons").joinpath("lessons.txt")
    return (line for line in file.read_text("utf-8").splitlines() if line)


def _take(idea: Idea, sign: str, cells: list[str], line: str) -> None:
    if sign == "at":
        page, _, form = cells[0].partition(" ")
        idea.page, idea.ticks, idea.goto, idea.unit = page, form == "ticks", cells[1], cells[2]
    elif sign == "let":
        idea.lets.append(_let(cells[0]))
    elif sign == "=":
        idea.formulas.append(Formula(*cells))
    elif sign == ":":
        idea.formulas.append(replace(idea.formulas.pop(), note=cells[0]))
    elif sign == "?":
        idea.question = cells[0]
    elif sign == "-":
        idea.choices.append((cells[0], cells[1]))
    elif sign == "!":
        idea.answer = cells[0]
    else:
        idea.text.append(line)


def _let(text: str) -> Let:
    symbol, how, *rest = text.split()
    if how == "=":
        expression, _, kind = " ".join(rest).partition(" | ")
        return Let(symbol, expression, kind=kind)
    return Let(symbol, f"{how} {rest[0]}", *rest[1:])


# ------------------------------------------------------------------------------ arithmetic

_OPERATORS: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.Eq: operator.eq, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


@cache
def _tree(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def value(expression: str, names: Mapping[str, float]) -> float:
    """Return the value of an expression or a comparison. Raises KeyError for an unknown name."""
    return _value(_tree(expression), names)


def _value(node: ast.expr, names: Mapping[str, float]) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, names), _value(node.right, names)
        return float(_OPERATORS[type(node.op)](left, right))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = _value(node.left, names), _value(node.comparators[0], names)
        return bool(_OPERATORS[type(node.ops[0])](left, right))
    raise ValueError(f"not arithmetic: {ast.unparse(node)}")
