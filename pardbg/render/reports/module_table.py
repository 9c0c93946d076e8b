"""Modules in the order of execution: how far outputs, their gradients and parameters' gradients are
from the reference, as bars of noise floors."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from pardbg.analysis.same.comparison import Sameness
from pardbg.analysis.same.noise import RED
from pardbg.render.draw.cells import clean

MAX_MODULES: Final = 32
_WHATS: Final = ("out", "d_out", "grad")
_WIDTH: Final = 12
_PER_DECADE: Final = 2
"""Cells of a bar for each power of ten."""
_LARGEST: Final = 1e99


def module_table(found: Sameness) -> list[str]:
    """Return a line for each module, outer ones and those beside the one to look at first; empty
    where no outputs were judged."""
    floors = _floors(found)
    names = [row.name for row in found.rows if row.what == "out"]
    shown = _shown(names, found.name)
    if not shown:
        return []
    cause = found.hypothesis.cause if found.hypothesis is not None else ""
    part = (found.what, found.name) if cause == "sum" else None
    width = max(len(_label(name)) for name in shown)
    heads = "".join(f"  {what:<{_WIDTH + 6}}" for what in _WHATS)
    lines = [f"  {'':{width}}{heads}".rstrip()]
    for name in shown:
        mark = "▶" if name == found.name and found.place is not None else " "
        cells = (
            _padded("Σ") if (what, name) == part else _cell(floors[what].get(name))
            for what in _WHATS
        )
        lines.append(f"{mark} {_label(name):{width}}{''.join(cells)}".rstrip())
    if len(shown) < len(names):
        lines.append(f"  {len(names) - len(shown)} more modules inside these")
    return lines


def _floors(found: Sameness) -> Mapping[str, Mapping[str, float]]:
    """Return noise floors by kind and module; of a module's parameters the worst."""
    floors: dict[str, dict[str, float]] = defaultdict(dict)
    first = found.rows[0].step if found.rows else 0
    for row in found.rows:
        if row.step == first and row.what in _WHATS:
            name = row.name.rpartition(".")[0] if row.what == "grad" else row.name
            floors[row.what][name] = max(floors[row.what].get(name, 0.0), row.floors)
    return floors


def _shown(names: list[str], chosen: str) -> list[str]:
    """Return the outer levels that fit, and the modules beside the chosen one."""
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


def _label(name: str) -> str:
    return clean(name) or "(model)"


def _cell(floors: float | None) -> str:
    """Return a bar of the powers of ten of noise floors, a mark from red on, and the number."""
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


def legend() -> Iterator[str]:
    """Yield what the bars mean."""
    yield "bars: log10 of the error in noise floors; ▏ up to 1, ▒ up to 10, █ more; Σ part of a sum"
