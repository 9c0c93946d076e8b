"""A sharded step as a picture: when each unit's parameters are fetched, whole, and thrown away."""

from __future__ import annotations

from collections.abc import Sequence

from pardbg import words
from pardbg.analysis.memory.sharding import ShardingView, Stretch, UnitRow
from pardbg.render.draw.axis import Axis
from pardbg.render.draw.bars import rule
from pardbg.render.draw.cells import Line, Row, Segment, clean, clip, line, right, width
from pardbg.render.draw.sparks import LEVELS

LEAST_ROWS = 6
"""Title, phases, three units, the sum."""
_FETCH, _WHOLE, _REDUCE = ("░", "wait"), (" ", "mem.P"), ("▒", "plan.B")


def sharding(view: ShardingView, cells: int, rows: int) -> list[Line]:
    """The picture at ``cells`` x at most ``rows``; nothing where it does not fit."""
    if rows < LEAST_ROWS or view.t1_ns <= view.t0_ns:
        return []
    units = _shown(view.units, rows - 3)
    gutter = min(24, max(width(clean(unit.name)) for unit in units)) + 13
    axis = Axis(view.t0_ns, view.t1_ns - view.t0_ns, max(10, cells - gutter - 2))
    head = f"whole on rank {view.rank} in step {view.step}"
    peak = (
        f"at most {words.binary_size(view.peak_bytes)} of {words.binary_size(view.whole_bytes)}"
        f" = {words.percent(view.peak_bytes / max(1, view.whole_bytes), 0)}"
    )
    lines = [
        line(" ", rule(f"parameters {head}" if cells >= 100 else head, cells - 2, peak)),
        line(" " * gutter, *_phases(view, axis)),
    ]
    lines += [_unit(unit, axis, gutter) for unit in units]
    return lines + _sum(view, axis, gutter, 3 if rows >= len(lines) + 3 else 1)


def legend() -> Line:
    """What the marks mean."""
    parts: list[Segment | str] = []
    for (char, style), word in ((_FETCH, "all_gather"), (_WHOLE, "whole"),
                                (_REDUCE, "reduce")):  # fmt: skip
        parts += ["  ", Segment(char * 2, style), Segment(f" {word}", "dim")]
    return line(*parts)


def _shown(units: Sequence[UnitRow], most: int) -> Sequence[UnitRow]:
    """All units, or the first and every n-th of the others."""
    if len(units) <= most:
        return units
    last = len(units) - 1
    return [units[round(at * last / max(1, most - 1))] for at in range(most)]


def _phases(view: ShardingView, axis: Axis) -> Line:
    """Where forward, backward and the optimizer lie, in words."""
    drawn = Row(axis.cells)
    for name, t0, t1 in view.phases:
        if name == "recompute":
            continue
        start, end = axis.x(t0), min(axis.cells, axis.x(t1))
        drawn.fill(start, end, "─", "rule")
        if end - start >= 4:
            drawn.put(start, clip(clean(name), end - start - 1) + " ", "dim")
    return drawn.line()


def _unit(unit: UnitRow, axis: Axis, gutter: int) -> Line:
    drawn = Row(axis.cells)
    for stretches, (char, style) in (
        (unit.reducing, _REDUCE), (unit.fetching, _FETCH), (unit.whole, _WHOLE)
    ):  # fmt: skip
        for stretch in stretches:
            _fill(drawn, axis, stretch, char, style)
    name = right(clip(clean(unit.name), gutter - 13), gutter - 12)
    size = right(words.binary_size(unit.bytes), 10)
    return line(Segment(name, ""), Segment(size + "  ", "dim"), drawn.line())


def _fill(drawn: Row, axis: Axis, stretch: Stretch, char: str, style: str) -> None:
    """At least a cell: what is there must be seen."""
    start, end = axis.x(stretch.t0_ns), axis.x(stretch.t1_ns)
    drawn.fill(start, max(end, start + 1), char, style)


def _sum(view: ShardingView, axis: Axis, gutter: int, height: int) -> list[Line]:
    """Bytes whole at once, as columns: a full one is all parameters."""
    tops = [0] * axis.cells
    ends = [t for t, _ in view.curve[1:]] + [view.t1_ns]
    for (t0, size), t1 in zip(view.curve, ends, strict=True):
        first = min(axis.cells - 1, max(0, axis.x(t0)))
        for at in range(first, min(axis.cells, max(first + 1, axis.x(t1)))):
            tops[at] = max(tops[at], size)
    whole = max(1, view.whole_bytes)
    eighths = [-(-top * 8 * height // whole) for top in tops]
    lines = []
    for row in reversed(range(height)):
        parts = [min(8, max(0, level - 8 * row)) for level in eighths]
        text = "".join(LEVELS[part - 1] if part else " " for part in parts)
        label = "together" if row == 0 else words.binary_size(view.whole_bytes) if row == 2 else ""
        lines.append(line(Segment(right(label, gutter - 2) + "  ", "dim"), Segment(text, "spark")))
    return lines
