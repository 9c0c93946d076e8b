"""Memory over time: a rank's total by category; a sharded step as a picture of when each unit's
parameters are fetched, whole, and freed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from statistics import median
from typing import Final

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.memory.breakdown import MemoryRow
from pardbg.analysis.memory.sharding import ShardingView, UnitRow
from pardbg.render.draw.axis import Axis
from pardbg.render.draw.bars import LEVELS, abreast, keys, panel_widths, rule
from pardbg.render.draw.cells import Line, Row, Segment, as_row, clean, clip, line, right, width
from pardbg.render.draw.plots import DOT, STEPS, Scale, Series, plot
from pardbg.render.draw.strip import strip
from pardbg.render.pages.zero_ladder import LEAST, ladder, note
from pardbg.store.definitions import FailedRequest

CATEGORIES: Final = (
    ("P", "parameters"), ("G", "gradients"), ("O", "optimizer"), ("A", "activations"),
    ("U", "other"),
)  # fmt: skip
TOTAL_ROWS: Final = 3
"""Lines of the breakdown of a rank's total."""
BESIDE: Final = 2 * LEAST + 6
"""Cells from which on the ladder of ZeRO levels is beside a chart."""
_UNKNOWN: Final = "   ? not known"
_SIGNS: Final = {**{letter: letter for letter, _ in CATEGORIES}, "U": ".", "over": "+"}
"""Part of an area -> its ASCII sign."""
_LABELS: Final = 11
_VALUES: Final = 12
"""Cells of the newest values beside the areas."""
_AREA: Final = 6
"""Minimum number of rows of each of two areas above each other."""
LEAST_ALIKE: Final = 3
"""Minimum number of ranks for a meaningful median."""
_NEAR: Final = 2.0
"""Share of a limit from which on it is a line of the chart: a more distant one would flatten it."""


def parts(row: MemoryRow) -> tuple[tuple[str, int], ...]:
    """Return (letter, bytes) of the stacked bar. The parts add up to the total, except activations
    that a pipeline's microbatches keep within a step: the total is of the time between two."""
    values = (row.parameters_bytes, row.gradients_bytes, row.optimizer_bytes,
              row.activations_bytes, row.unattributed_bytes)  # fmt: skip
    return tuple(
        (letter, max(value or 0, 0)) for (letter, _), value in zip(CATEGORIES, values, strict=True)
    )


def whole(row: MemoryRow, cells: int) -> list[Line]:
    """Draw the breakdown of a rank's memory, and the contents of "other"."""
    if not row.total_bytes or row.unattributed_bytes is None:
        return []
    rest = row.unattributed_bytes
    counted = rest + sum(value for _, value in parts(row)[:4]) <= row.total_bytes
    known = "P+G+O+A" if counted and row.activations_bytes else "P+G+O"
    kind = "resident set" if row.total_kind == "rss" else "allocated"
    note = f"{kind} {words.binary_size(row.total_bytes)}"
    if row.limit_bytes:
        note += f" of {words.binary_size(row.limit_bytes)}"
    if row.reserved_bytes and row.reserved_bytes > row.total_bytes:
        note += f", {words.binary_size(row.reserved_bytes - row.total_bytes)} more reserved"
    other = "Python, torch, libraries, buffers"
    if row.total_kind == "allocated":
        other = "buffers, temporaries and what no object names"
    share = words.percent(rest / row.total_bytes, 0)
    failed = () if row.failed is None else (_failed(row.failed),)
    text = f"  {known} {words.binary_size(row.total_bytes - rest)}   "
    text += f"other {words.binary_size(rest)} ({share}): "
    return [
        (),
        line(" ", rule(f"all of rank {row.rank}", cells - 2, note)),
        line(Segment(text, ""), Segment(clip(other, max(8, cells - width(text))), "dim")),
        *failed,
    ]


def _failed(request: FailedRequest) -> Line:
    """Draw an allocation request that failed."""
    asked = "a request"
    if request.asked_bytes is not None:
        asked = words.binary_size(request.asked_bytes)
    held = words.binary_size(request.allocated_bytes)
    return line(
        Segment("  out of memory: ", "bad"),
        Segment(f"{asked} in step {request.step}, with {held} allocated", ""),
        Segment("   8 Findings has the cause", "dim"),
    )


def course(
    snapshot: Snapshot,
    own: MemoryRow,
    cells: int,
    height: int,
    total_first: bool = False,
    ascii_: bool = False,
) -> list[Line]:
    """Draw one rank's categories, the total of every rank with the limit, and the ladder of ZeRO
    levels, side by side as far as they fit: the ladder before the totals."""
    begin_ns = None if _counts_steps(snapshot) else snapshot.t_begin_ns
    scale = STEPS if begin_ns is None else _TIMES
    steps = own.zero is not None and bool(ladder(own, LEAST))
    panels = [panel for panel in [_totals(snapshot, own, begin_ns)] if any(map(_points, panel[2]))]
    known = any(points for _, points in own.course)
    count = max(1, min(known + len(panels) + steps, (cells - 2) // (LEAST + 2)))
    sizes = iter(panel_widths(cells, count))
    drawn: list[tuple[Sequence[Line], int]] = []
    if known:
        size = next(sizes)
        title, said, lines = _parted(snapshot, own, size, height - 2, total_first, ascii_)
        drawn.append(([rule(title, size, said), *lines], size))
    for title, said, shown in panels if count > len(drawn) + steps else ():
        chart = plot(shown, size := next(sizes), height - 2, scale, _BYTES)
        drawn += [([rule(title, size, said), *chart], size)] if chart else []
    if own.zero is not None and steps and count > len(drawn):
        rows = ladder(own, size := next(sizes), height - 2)
        drawn.append(([rule("ZeRO levels, between steps", size, note(own.zero)), *rows], size))
    return [(), *abreast(drawn)] if drawn else []


def _points(series: Series) -> bool:
    return bool(series.points)


def _parted(
    snapshot: Snapshot, own: MemoryRow, cells: int, rows: int, total_first: bool, ascii_: bool
) -> tuple[str, str, Sequence[Line]]:
    """Draw a rank's categories; with ``total_first`` also its bytes above the other ranks' median,
    below the categories, or instead of them if rows are few."""
    upper = max(_AREA, rows * 2 // 5) if rows >= 2 * _AREA else 0
    beside = _VALUES if upper else 0  # one axis for both
    area = grown(snapshot, own, cells - beside, rows - upper, ascii_) if total_first else None
    if area is None:
        return (
            f"rank {own.rank}, by category",
            _sum_of(own),
            categories(snapshot, own, cells, rows, ascii_),
        )
    title, said, lines = area
    return (
        title,
        said,
        [*(categories(snapshot, own, cells, upper, ascii_)[:-1] if upper else ()), *lines],
    )


def _sum_of(own: MemoryRow) -> str:
    newest = own.history[-1][0] if own.history else 0
    known = (dict(points).get(newest, 0) for _, points in own.course)
    return words.binary_size(sum(known))


def categories(
    snapshot: Snapshot, own: MemoryRow, cells: int, rows: int, ascii_: bool = False
) -> list[Line]:
    """Draw a rank's categories as stacked areas, on a scale of their own, with the newest values
    beside them, over the numbers of the steps."""
    room = cells - _LABELS - _VALUES
    begin, end, moments = _moments(snapshot, own, room)
    letters = {name: letter for letter, name in CATEGORIES}
    times = [t_ns for t_ns, _ in own.history]
    latest = [times[bisect_right(times, t_ns) - 1] for t_ns in moments]
    courses = [(letters[name], dict(points)) for name, points in own.course]
    columns = [[(points.get(t_ns, 0), letter) for letter, points in courses] for t_ns in latest]
    top = max((sum(value for value, _ in column) for column in columns), default=0)
    if rows < _AREA - 1 or room < 8 or top <= 0:
        return []
    beside, below = dict[int, Line](), 0
    for value, letter in columns[-1]:
        middle = int((below + value / 2) / top * (rows - 1))
        at = max(middle, *(row + 1 for row in beside)) if beside else middle
        if value and at < rows - 1:
            said = Segment(f" {letter} ", f"ink.{letter}"), Segment(words.binary_size(value), "dim")
            beside[at] = said
        below += value
    areas = strip([[(value / top, letter) for value, letter in column] for column in columns],
                  room, rows - 1, 1, _SIGNS if ascii_ else None)  # fmt: skip
    unknown = [at for at, t_ns in enumerate(latest)
               if any(t_ns not in points for _, points in courses)]  # fmt: skip
    drawn = [line(_tick(at, rows - 1, top), row, beside.get(rows - 2 - at, ()))
             for at, row in enumerate(_with_unknown(areas, unknown))]  # fmt: skip
    if unknown and width(f"{begin}{_UNKNOWN}  {end}") <= room:
        begin += _UNKNOWN
    return [*drawn, (_ends(begin, end, room),)]


def _with_unknown(areas: Sequence[Line], columns: Sequence[int]) -> list[Line]:
    """Return areas with ``?`` above the known bytes in the columns where more may be used."""
    rows = [as_row(row) for row in areas]
    for x in columns:
        free = next((row for row in reversed(rows) if row.blank(x)), rows[0])
        free.put(x, "?", "faint")
    return [row.line() for row in rows]


def _tick(at: int, rows: int, top: int) -> Segment:
    label = words.binary_size(top) if at == 0 else "0" if at == rows - 1 else ""
    return Segment(right(label, _LABELS - 2) + (" ┤" if label else " │"), "dim")


def _ends(begin: str, end: str, room: int) -> Segment:
    return Segment(" " * _LABELS + begin + right(end, room - len(begin)), "dim")


Panel = tuple[str, str, list[Series]]


def _counts_steps(snapshot: Snapshot) -> bool:
    """Return whether the axis is in steps, which leaves out time in which ranks were held."""
    return all(len(row.steps) == len(row.history) for row in snapshot.memory)


def _xs(row: MemoryRow, begin_ns: int | None) -> Sequence[int]:
    """Return the axis position of each point of a row's history; without a begin: steps."""
    return row.steps if begin_ns is None else [t_ns - begin_ns for t_ns, _ in row.history]


def _totals(snapshot: Snapshot, own: MemoryRow, begin_ns: int | None) -> Panel:
    shown = [
        Series(
            tuple(zip(_xs(row, begin_ns), (total for _, total in row.history), strict=True)),
            "spark" if row.rank == own.rank else "faint",
            DOT if len(row.history) <= 40 else "braille",
        )
        for row in sorted(snapshot.memory, key=lambda row: row.rank == own.rank)
    ]
    most = max((total for row in snapshot.memory for _, total in row.history), default=0)
    note = f"rank {own.rank}, others behind"
    if own.limit_bytes and most * _NEAR >= own.limit_bytes:
        ends = _xs(own, begin_ns) or [0]
        across = (ends[0] + (ends[-1] - ends[0]) * part / 99 for part in range(100))
        level = tuple((x, own.limit_bytes) for x in across)
        shown.append(Series(level, "bad", "╌"))
    if own.limit_bytes:
        note = f"limit {words.binary_size(own.limit_bytes)}"
    return "total", note, shown


def grown(
    snapshot: Snapshot, own: MemoryRow, cells: int, rows: int, ascii_: bool = False
) -> tuple[str, str, list[Line]] | None:
    """Draw a rank's categories as stacked areas, topped by its bytes above the median of the ranks
    that should hold as much; None if there is nothing to compare."""
    alike = [row.history for row in snapshot.memory if row.history and row is not own
             and row.rank != own.rank and row.expected_bytes == own.expected_bytes]  # fmt: skip
    if len(alike) < LEAST_ALIKE - 1 or len(own.history) < 2 or rows < 4:
        return None
    room = cells - _LABELS
    begin, end, moments = _moments(snapshot, own, room)
    top = max(total for _, total in own.history)
    columns = []
    for t_ns in moments:
        total = _at(own.history, t_ns) or 0
        usual = [value for one in alike if (value := _at(one, t_ns)) is not None]
        over = max(0, total - round(median(usual))) if usual else 0
        known = [(_at(points, t_ns) or 0, name[0].upper()) for name, points in own.course]
        rest = total - over - sum(value for value, _ in known)
        parts = [*known, (max(0, rest), "U"), (over, "over")]
        columns.append([(value / top, letter) for value, letter in parts])
    areas = strip(columns, room, rows - 2, 1, _SIGNS if ascii_ else None)
    drawn = [line(_tick(at, rows - 2, top), row) for at, row in enumerate(areas)]
    full, other = ("+", ".") if ascii_ else ("█", "█")
    marks = ((full, "strip.over", "over the median of the others"), (other, "strip.U", "other"))
    key = line(" " * _LABELS, keys(marks, room))
    said = f"rank {own.rank} over time", words.binary_size(own.total_bytes)
    return *said, [key, *drawn, (_ends(begin, end, room),)]


def _moments(snapshot: Snapshot, own: MemoryRow, room: int) -> tuple[str, str, list[int]]:
    """Return the ends of a rank's axis, and the time of each of its ``room`` columns."""
    times = [t_ns for t_ns, _ in own.history]
    by_step = _counts_steps(snapshot)
    xs: Sequence[int] = own.steps if by_step else times
    if not xs:
        return "", "", []
    columns = [xs[0] + (xs[-1] - xs[0]) * at // max(1, room - 1) for at in range(room)]
    if by_step:
        made = [times[bisect_right(xs, x) - 1] for x in columns]
        return f"step {xs[0]}", str(xs[-1]), made
    begin, end = (words.offset(t - snapshot.t_begin_ns, 1e8) for t in (xs[0], xs[-1]))
    return begin, end, columns


def _at(points: Sequence[tuple[int, int]], t_ns: int) -> int | None:
    """Return the last value reported at or before a time."""
    at = bisect_right(points, t_ns, key=lambda point: point[0])
    return points[at - 1][1] if at else None


_TIMES: Final = Scale(lambda ns: words.offset(ns, 1e8) if ns else "0")
_BYTES: Final = Scale(words.binary_size, binary=True)


LEAST_ROWS = 6
"""Minimum rows: title, phases, three units, the sum."""
_FETCH, _WHOLE, _REDUCE = ("░", "wait"), (" ", "mem.P"), ("▒", "plan.B")


def sharding(view: ShardingView, cells: int, rows: int) -> list[Line]:
    """Return the picture at ``cells`` x at most ``rows``; empty if it does not fit."""
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
    """Return the meaning of the marks."""
    names = ((_FETCH, "all_gather"), (_WHOLE, "whole"), (_REDUCE, "reduce"))
    return line("  ", keys(((char * 2, style, word) for (char, style), word in names), 80))


def _shown(units: Sequence[UnitRow], most: int) -> Sequence[UnitRow]:
    """Return all units, or the first and every n-th of the others."""
    if len(units) <= most:
        return units
    last = len(units) - 1
    return [units[round(at * last / max(1, most - 1))] for at in range(most)]


def _phases(view: ShardingView, axis: Axis) -> Line:
    """Draw the names of forward, backward and optimizer over their times."""
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
        for stretch in stretches:  # at least a cell: what is there must be seen
            start, end = axis.x(stretch.t0_ns), axis.x(stretch.t1_ns)
            drawn.fill(start, max(end, start + 1), char, style)
    name = right(clip(clean(unit.name), gutter - 13), gutter - 12)
    size = right(words.binary_size(unit.bytes), 10)
    return line(Segment(name, ""), Segment(size + "  ", "dim"), drawn.line())


def _sum(view: ShardingView, axis: Axis, gutter: int, height: int) -> list[Line]:
    """Draw the bytes that are whole at a time as columns; a full column is all parameters."""
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
