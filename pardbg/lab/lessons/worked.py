"""Lessons with the numbers of recorded runs in them, as pages to draw."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from pardbg import words
from pardbg.analysis.answers.report import Report
from pardbg.lab.lessons.figures import figure
from pardbg.lab.lessons.lesson_table import Formula, Idea, Lesson, value
from pardbg.render.frame.lesson import LessonPage, Worked

_DECIMAL: Final = ("MB", "kB")
_FORMATS: Final[Mapping[str, Callable[[float], str]]] = {
    "MB": words.size, "kB": words.size, "MiB": words.binary_size, "KiB": words.binary_size,
    "ms": words.duration, "%": words.percent, "x": lambda ratio: f"{ratio:.2f}×",
    "": lambda number: words.count(round(number)) if number == round(number)
    else words.number(number),
}  # fmt: skip
"""Unit -> format of a value; for bytes with the value's prefix."""
_KINDS: Final = {"bytes": "MB", "memory": "MiB", "ns": "ms", "share": "%", "": ""}
"""Kind of a figure -> its unit."""
_SYMBOL: Final = re.compile(r"[^\W\d]\w*")
_PLACE: Final = re.compile(r"\{([^}:]+)(?::([^}]*))?\}")
Reports = Mapping[str, Report]


class Numbers:
    """The named numbers of an idea."""

    def __init__(self, idea: Idea, reports: Reports) -> None:
        """Calculate the numbers. Raises `figures.Unknown`."""
        self.values: dict[str, float] = {}
        self._kinds: dict[str, str] = {}
        for let in idea.lets:
            if let.kind is not None:
                found = value(let.of, self.values), let.kind
            else:
                found = figure(let.of, reports[let.recording or idea.recording])
            self.values[let.symbol], self._kinds[let.symbol] = found

    def fill(self, text: str) -> str:
        """Return a text with values in the place of each ``{expression:unit}``."""
        return _PLACE.sub(lambda match: self.printed(match[1], match[2]), text)

    def printed(self, expression: str, unit: str | None = None) -> str:
        """Return the value of an expression as text; without a unit, in that of its only symbol."""
        unit = _KINDS[self._kinds.get(expression, "")] if unit is None else unit
        return _FORMATS[unit](value(expression, self.values))

    def holds(self, condition: str) -> bool:
        return bool(value(condition, self.values))

    def worked(self, formula: Formula) -> Worked:
        """Return a formula with its numbers, and whether the observed value fits."""

        def put(match: re.Match[str]) -> str:
            unit = _KINDS[self._kinds[match[0]]]
            unit = formula.unit if unit == "MiB" and formula.unit in _DECIMAL else unit
            return _FORMATS[unit](self.values[match[0]])

        result = value(formula.expression, self.values)
        seen = value(formula.seen, self.values) if formula.seen else None
        return Worked(
            self.fill(formula.label), _typeset(formula.expression),
            _typeset(_SYMBOL.sub(put, formula.expression)), _FORMATS[formula.unit](result),
            "" if seen is None else _FORMATS[formula.unit](seen),
            None if seen is None else holds(formula.relation, result, seen),
            self.fill(formula.note),
        )  # fmt: skip


def holds(relation: str, result: float, seen: float) -> bool:
    """Return whether ``seen`` is ``= 2%``, ``>=`` or ``<=`` of the result."""
    if relation.startswith("="):
        return abs(seen - result) <= float(relation.strip("= %")) / 100 * abs(result)
    return seen >= result if relation == ">=" else seen <= result


def _typeset(expression: str) -> str:
    return expression.replace("*", "⋅").replace(" - ", " − ")


def pages(lesson: Lesson, reports: Reports) -> tuple[LessonPage, ...]:
    """Return the lesson's pages with the numbers of these runs. Raises `figures.Unknown`."""
    return tuple(_page(lesson, at, reports) for at in range(len(lesson.ideas)))


def _page(lesson: Lesson, at: int, reports: Reports) -> LessonPage:
    idea = lesson.ideas[at]
    numbers = Numbers(idea, reports)
    return LessonPage(
        lesson.name, lesson.title, idea.title, at, len(lesson.ideas), idea.recording,
        idea.page, idea.ticks, idea.goto, idea.unit,
        text=tuple(numbers.fill(paragraph) for paragraph in idea.text),
        worked=tuple(numbers.worked(formula) for formula in idea.formulas),
        question=numbers.fill(idea.question),
        choices=tuple((numbers.fill(text), numbers.holds(of)) for text, of in idea.choices),
        answer=numbers.fill(idea.answer),
    )  # fmt: skip
