"""The answer of ``pardbg same`` as text: one sentence first, then the differing tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pardbg.analysis.same.comparison import Row, Sameness
from pardbg.render.draw.cells import clean
from pardbg.render.frame.same_words import (
    element_lines,
    loss_line,
    not_judged,
    verdict,
    where,
)  # fmt: skip
from pardbg.render.reports.module_table import LEGEND, module_table
from pardbg.render.reports.sections import table
from pardbg.words import count, number

MAX_ROWS: Final = 10
MAX_ELEMENTS: Final = 4
"""Maximum number of shown tensors that are compared element by element."""


def same_text(found: Sameness) -> str:
    """Return the verdict, the first and the worst differing tensors, and what was not compared."""
    loss = [] if found.loss is None else [loss_line(found.loss, found.reason == "same")]
    lines = [*loss, verdict(found), *where(found)]
    first = (found.step, found.what, found.name)  # green where it agrees as a sum
    off = [row for row in found.rows if row.level != "green" or _key(row) == first]
    off.sort(key=lambda row: _key(row) != first)
    if off:
        lines += ["", "first tensors that differ", *_table(off[:MAX_ROWS], "sum")]
        if len(off) > MAX_ROWS:
            lines.append(f"… {count(len(off) - MAX_ROWS)} more")
    for one in found.elements[:MAX_ELEMENTS]:
        lines += ["", *element_lines(one)]
    if off and (modules := module_table(found)):
        lines += ["", "modules in the order of execution", *modules, LEGEND]
    if worst := _worst(found.rows):
        lines += ["", "largest differences", *_table(worst)]
    notes = list(_notes(found))
    return "\n".join([*lines, "", *notes] if notes else lines)


def _key(row: Row) -> tuple[int, str, str]:
    return row.step, row.what, row.name


def _table(rows: Sequence[Row], agrees: str = "green") -> list[str]:
    """Return a table of tensors; ``agrees``: the word for a row that agrees."""
    cells = [("", "step", "what", "error", "floors", "tensor")]
    cells += [
        (agrees if row.level == "green" else row.level, str(row.step), row.what, number(row.error),
         number(row.floors), clean(row.name)) for row in rows
    ]  # fmt: skip
    return table(cells, (0, 2, 5))


def _worst(rows: Sequence[Row]) -> list[Row]:
    """Return the row with the largest difference, in floors, of each kind of tensor."""
    kinds = dict.fromkeys(row.what for row in rows)
    return [max((r for r in rows if r.what == kind), key=lambda r: r.floors) for kind in kinds]


def _notes(found: Sameness) -> Iterator[str]:
    if not found.inputs_known and found.rows:
        yield "The inputs are not known: no rows of the model's inputs were captured in both runs."
    if found.reason == "differs" and found.hypothesis is None:
        yield "Random numbers differ between layouts: dropout must be off in both runs."
    if found.exit_code == 1 and found.rows and not found.elements:
        of = f"{found.what}:{clean(found.name)}"
        yield f"Which elements differ: record both again with --full {of}, and compare."
    if found.floor_idle:
        yield "--floor is equal to the reference bit by bit: it tells nothing of rounding."
    if found.left:
        yield "not compared"
        yield from (f"  {not_judged(left)}" for left in found.left)
