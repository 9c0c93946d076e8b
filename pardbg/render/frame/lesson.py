"""A page of a lesson: the idea with its formulas, the question, and the user's progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pardbg.render.draw.bars import rule
from pardbg.render.draw.cells import Line, Picture, Segment, clip, left, line, width, wrap

LETTERS: Final = "abcd"
HOW: Final = "answer with a, b, c; or step the run and look"


@dataclass(frozen=True, slots=True)
class Worked:
    """A formula with a run's numbers inserted."""

    label: str
    formula: str
    put_in: str
    result: str
    seen: str
    """Observed value to compare the result with; empty: none was observed."""
    holds: bool | None
    note: str


@dataclass(frozen=True, slots=True)
class LessonPage:
    """An idea of a lesson, with all its words and numbers."""

    lesson: str
    """Short name of the lesson."""
    heading: str
    """Title of the lesson."""
    title: str
    number: int
    """Number of the page in its lesson, from 0."""
    of: int
    recording: str
    """Name of the run on the left."""
    screen: str
    """Screen of the idea, whether by ticks, time of the cursor, and unit of a move."""
    ticks: bool
    goto: str
    unit: str
    text: tuple[str, ...]
    worked: tuple[Worked, ...]
    question: str
    choices: tuple[tuple[str, bool], ...]
    """(text of the answer, whether it is right)"""
    answer: str

    @property
    def key(self) -> str:
        """Return the page's name in the file of given answers."""
        return f"{self.lesson} {self.number}"


def idea_picture(page: LessonPage, cells: int, framed: bool = False) -> Picture:
    """Draw the text, then each formula: in symbols, with numbers, its result, the observed value;
    ``framed``: a border around the picture has the title."""
    head = rule(page.title, cells - 1, f"{page.number + 1} of {page.of}")
    body: list[Line] = [*_wrapped(page.heading, cells, "dim"), () if framed else head]
    for paragraph in page.text:
        body += [*_wrapped(paragraph, cells, ""), ()]
    for worked in page.worked:
        body += [*_formula(worked, cells), ()]
    return Picture(body=tuple(body[:-1]))


def _formula(worked: Worked, cells: int) -> list[Line]:
    lines = [line(" ", Segment(clip(worked.label, cells - 2), "dim"))]
    put_in = f" = {worked.put_in}" if worked.put_in != worked.result else ""
    parts = [Segment(worked.formula, "strong"), Segment(put_in), Segment(" = "),
             Segment(worked.result, "strong")]  # fmt: skip
    if 1 + sum(width(part.text) for part in parts) < cells:
        lines.append(line(" ", *parts))
    else:
        lines.append(line(" ", parts[0]))
        lines.append(line("  = ", Segment(worked.put_in)))
        lines.append(line("  = ", parts[3]))
    if worked.seen:
        sign, style = {True: (" ✓", "good"), False: (" ✗", "bad"), None: ("", "")}[worked.holds]
        seen = Segment("seen here ", "dim"), Segment(worked.seen, "strong"), Segment(sign, style)
        lines.append(line(" ", *seen))
    return [*lines, *_wrapped(worked.note, cells, "dim")]


def _wrapped(text: str, cells: int, style: str) -> list[Line]:
    return [line(" ", Segment(part, style)) for part in wrap(text, cells - 2)]


def question_lines(
    page: LessonPage, chosen: int | None, cells: int, framed: bool = False
) -> tuple[Line, ...]:
    """Draw the question, its choices, and the reply to the ``chosen`` one; ``framed``: a border
    around the question has its heading."""
    lines = [] if framed else [rule("question", cells - 1, HOW)]
    lines += _wrapped(page.question, cells, "strong")
    for at, (text, right) in enumerate(page.choices):
        letter, said = Segment(f" {LETTERS[at]} ", "key"), Segment("")
        if at == chosen:
            letter = Segment(letter.text, "alarm.warn")
            said = Segment("  ✓ right", "good") if right else Segment("  ✗ no: look again", "bad")
        room = cells - 6 - width(said.text)
        lines.append(line(" ", letter, " ", clip(text, room), said))
    right = chosen is not None and page.choices[chosen][1]
    return (*lines, *(_wrapped(page.answer, cells, "dim") if right else [()]))


def strip(lessons: Sequence[tuple[str, int, int]], at: int, cells: int) -> tuple[Line, ...]:
    """Draw a name for each lesson with the share of answers; ``lessons``: (name, answered,
    ideas)."""
    size = (cells - 1) // max(1, len(lessons))
    marks, names = [Segment(" ")], [Segment(" ")]
    for number, (name, done, ideas) in enumerate(lessons):
        whole, here = done >= ideas, number == at
        style = "accent" if here else "good" if whole else "faint"
        filled = round(done / ideas * (size - 1))
        marks += [
            Segment("━" * filled, "good"),
            Segment("━" * (size - 1 - filled), "accent" if here else "rule"),
            Segment(" "),
        ]
        text = f"✓ {name}" if whole and size > width(name) + 2 else name
        names.append(Segment(left(text, size - 1) + " ", "accent" if here else style))
    return line(*marks), line(*names)
