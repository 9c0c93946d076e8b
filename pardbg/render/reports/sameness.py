"""The answer of ``pardbg same`` as text: one sentence first, then the differing tensors, and a
table of modules in the order of execution: the distance of outputs, their gradients and parameters'
gradients from the reference, as bars of noise floors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from pardbg.analysis.same.comparison import Row, Sameness
from pardbg.analysis.same.module_rows import WHATS, module_rows
from pardbg.analysis.same.noise import RED
from pardbg.render.draw.cells import clean
from pardbg.render.frame.same_words import (
    element_lines,
    label,
    loss_line,
    not_judged,
    verdict,
    where,
)  # fmt: skip
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


MAX_MODULES: Final = 32
LEGEND: Final = (
    "bars: log10 of the error in noise floors; ▏ up to 1, ▒ up to 10, █ more; Σ part of a sum"
)
_WIDTH: Final = 12
_PER_DECADE: Final = 2
"""Cells of a bar for each power of ten."""
_LARGEST: Final = 1e99


def module_table(found: Sameness) -> list[str]:
    """Return a line for each module, of outer levels and beside the module to look at first; empty
    if no outputs were judged."""
    rows = module_rows(found)
    shown = _shown([row.name for row in rows], found.name)
    if not shown or not any("out" in row.floors for row in rows):
        return []
    width = max(len(label(name)) for name in shown)
    heads = "".join(f"  {what:<{_WIDTH + 6}}" for what in WHATS)
    lines = [f"  {'':{width}}{heads}".rstrip()]
    for row in rows:
        if row.name in shown:
            cells = (
                _padded("Σ") if what in row.parts else _cell(row.floors.get(what)) for what in WHATS
            )
            mark = "▶" if row.first else " "
            lines.append(f"{mark} {label(row.name):{width}}{''.join(cells)}".rstrip())
    if len(shown) < len(rows):
        lines.append(f"  {len(rows) - len(shown)} more modules inside these")
    return lines


def _shown(names: list[str], chosen: str) -> list[str]:
    """Return the modules of the outer levels that fit, and those beside the chosen one."""
    beside = chosen.rpartition(".")[0]
    wanted = {name for name in names if chosen and name.rpartition(".")[0] == beside}
    for depth in sorted({_depth(name) for name in names}):
        more = wanted | {name for name in names if _depth(name) == depth}
        if len(more) > MAX_MODULES and wanted:
            break
        wanted = more
    return [name for name in names if name in wanted][:MAX_MODULES]


def _depth(name: str) -> int:
    return name.count(".") + bool(name)


def _cell(floors: float | None) -> str:
    """Return a bar of the power of ten of the noise floors, a mark from red on, and the number."""
    if floors is None:
        return _padded("·")
    if floors < 1:
        return _padded("▏")
    decades = math.log10(min(floors, _LARGEST))
    length = min(_WIDTH, max(1, round(_PER_DECADE * decades)))
    number = "inf" if math.isinf(floors) else f"{decades:.1f}"
    return f"  {('█' if floors >= RED else '▒') * length:<{_WIDTH}} {number:<5}"


def _padded(text: str) -> str:
    return f"  {text:<{_WIDTH + 6}}"
