"""Table of modules in the order of execution: the distance of outputs, their gradients and
parameters' gradients from the reference, as bars of noise floors."""

from __future__ import annotations

import math
from typing import Final

from pardbg.analysis.same.comparison import Sameness
from pardbg.analysis.same.module_rows import WHATS, module_rows
from pardbg.analysis.same.noise import RED
from pardbg.render.frame.same_words import label

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
