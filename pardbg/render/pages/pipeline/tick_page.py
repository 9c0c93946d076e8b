"""The pipeline page by ticks: done, next and waiting actions, whatever their duration.

Drawn while ranks are held, and on request (``g``), live and in replay. All pipelines of the run are
drawn one below the other; the text describes the selected rank's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.pipeline.ticks.cell import CellDetail, Ticks
from pardbg.analysis.pipeline.ticks.grid import TickCell, TickGrid, TickRow
from pardbg.render.draw.bars import inspected
from pardbg.render.draw.cells import (
    Line,
    Picture,
    Row,
    Segment,
    fit,
    left,
    line,
    line_width,
    spread,
)
from pardbg.render.frame.control_words import Words, did, short
from pardbg.render.pages.pipeline.cell_strip import moved_text
from pardbg.render.pages.pipeline.schedule import KIND_WORD, token
from pardbg.render.pages.pipeline.tick_row import (
    Window,
    flight_row,
    grid_row,
    gutter,
    gutter_below,
    ruler,
    window,
)
from pardbg.words import duration

NAME = 10
"""Cells for the mark, rank and stages."""
FLIGHT = 3
"""Lines of a row from which on microbatches in flight are below it."""
_WIDE = 100
_SHORT = {"F": "fwd", "B": "bwd", "I": "bwd input", "W": "weight"}
_ORDER = {
    "plan": ("",), "seen": ("no plan: actions as seen", "as seen"),
    "step before": ("no plan: what is to come is as in the step before",
                    "to come: as in the step before", "no plan"),
}  # fmt: skip
"""Source of the order of actions, as texts from long to short."""


@dataclass(frozen=True, slots=True)
class TickPageState:
    """State of the tick page: the selection."""

    selected: int | None = None
    """The selected rank; None: none."""
    cursor: str | int | None = None
    """The selected cell on that rank: its action, or its tick."""
    hits: Mapping[int, str] = field(default_factory=dict)
    """Rank -> the breakpoint or watch that holds the rank, in words."""


def tick_page(
    snapshot: Snapshot, ticks: Ticks, cells: int, rows: int, look: TickPageState | None = None
) -> Picture:
    """Draw the page at ``cells`` x ``rows``; ``ticks.grids`` has at least one grid."""
    look = look or TickPageState()
    grids, tail = ticks.grids, _tail(snapshot, cells)
    chosen, seen = _in_view(ticks, look, cells - tail)
    head = [_title(snapshot, chosen, cells)]
    height = row_height(grids, rows - 2 - 2 * (rows >= 30) - 2 * (rows >= 20) - 3)
    text = _foot(ticks, chosen, look, cells, rows, height[0] < FLIGHT)
    foot: list[Line] = [()] * (rows >= 30) + [legend(chosen, cells)] if rows >= 20 else []
    more = beyond(seen, chosen)
    room = cells - line_width(more)
    numbers = ruler(seen, chosen.tick, chosen.num_ticks, room - NAME - 1).line()
    head += [()] * (rows >= 30) + [spread(line(" " * NAME, *numbers), more, cells)]
    room = rows - len(head) - len(foot) - len(text)
    height = min(height, row_height(grids, room))
    body: list[Line] = []
    places: list[int] = []
    for grid in grids:
        lines, whose = grid_lines(grid, seen, look, tail, height, len(grids) > 1)
        body += lines
        places += whose
    if len(body) <= room:  # the words stand right under the grid
        body += text
    else:
        foot = [*text, *foot]
    focus = places.index(look.selected) if look.selected in places else None
    return Picture(tuple(head), tuple(body), tuple(foot), focus=focus, rows=tuple(places))


def _in_view(ticks: Ticks, look: TickPageState, cells: int) -> tuple[TickGrid, Window]:
    """Return the selected rank's grid, and the ticks shown, including the selected cell's."""
    grids = ticks.grids
    chosen = next((g for g in grids if any(r.rank == look.selected for r in g.rows)), grids[0])
    own = [cell for row in chosen.rows if row.rank == look.selected for cell in row.cells]
    ticks_at = (cell.tick for cell in own if look.cursor in (cell.action, cell.tick))
    return chosen, window(grids, cells - NAME - 1, next(ticks_at, chosen.tick))


def cell_at(
    snapshot: Snapshot, ticks: Ticks, cells: int, look: TickPageState, rank: int, x: int
) -> TickCell | None:
    """Return the action drawn at column ``x`` of a rank's row."""
    _, seen = _in_view(ticks, look, cells - _tail(snapshot, cells))
    rows = [row for grid in ticks.grids for row in grid.rows]
    return cell_under(rows, seen, rank, x)


def cell_under(rows: Iterable[TickRow], seen: Window, rank: int, x: int) -> TickCell | None:
    """Return the cell at column ``x`` of a rank's row."""
    tick = seen.first + (x - NAME) // seen.width
    found = (c for row in rows if row.rank == rank for c in row.cells if c.tick == tick)
    return next(found, None) if x >= NAME else None


def _tail(snapshot: Snapshot, cells: int) -> int:
    """Return the cells of the gutter at the right, equal for all contents, so that no cell
    moves."""
    if snapshot.control.mode == "running":  # no gates, only waiting ranks
        return 0 if cells < _WIDE else 13
    return 34 if cells >= 160 else 20 if cells >= _WIDE else 18


def _title(snapshot: Snapshot, grid: TickGrid, cells: int) -> Line:
    view = snapshot.pipeline
    name = (view.schedule if view is not None else "") or "no schedule"
    shape = ""
    if view is not None:
        shape = f"p={view.num_ranks} m={view.num_microbatches}"
        shape += f" v={view.num_virtual}" if view.num_virtual > 1 else ""
    start = line(
        " ", Segment(name if cells >= _WIDE else name.removeprefix("Schedule"), "strong"),
        Segment(f"  {shape}  ", "dim"), Segment("by tick", "accent"),
        Segment("  g: by time" if cells >= _WIDE else "", "faint"),
    )  # fmt: skip
    end = line(
        Segment("step ", "dim"), Segment(str(grid.step), "strong"), Segment("  tick ", "dim"),
        Segment(str(grid.tick), "held"), Segment(f" of {grid.num_ticks} ", "dim"),
        Segment(f" done {grid.num_done} of {grid.num_actions} " if cells >= _WIDE else "", "dim"),
    )  # fmt: skip
    room = cells - line_width(start) - line_width(end) - 3
    note = next((text for text in _ORDER[grid.source] if len(text) <= room), "")
    return spread((*start, Segment(f"   {note}", "dim")), end, cells)


def beyond(seen: Window, grid: TickGrid) -> Line:
    """Return a note with the number of ticks beyond the edges."""
    before, after = seen.first - 1, grid.num_ticks - (seen.first + seen.number - 1)
    text = "  ".join([f"◀ +{before}"] * (before > 0) + [f"+{after} ▶"] * (after > 0))
    return (Segment(f" {text} ", "accent"),) if text else ()


def row_height(grids: tuple[TickGrid, ...], room: int) -> tuple[int, int]:
    """Return (lines of a row, blank lines after the row): the richest density that fits."""
    number = sum(len(grid.rows) for grid in grids)
    extra = 2 * len(grids) if len(grids) > 1 else 0
    for tall, gap in ((3, 2), (3, 1), (2, 1), (1, 1), (1, 0)):
        if number * (tall + gap) - gap + extra <= room:
            return tall, gap
    return 1, 0


def grid_lines(
    grid: TickGrid,
    seen: Window,
    look: TickPageState,
    tail: int,
    height: tuple[int, int],
    named: bool,
) -> tuple[list[Line], list[int]]:
    """Return the lines of a pipeline, with the rank of each line."""
    tall, gap = height
    lines: list[Line] = []
    places: list[int] = []
    if named:
        lines.append(_heading(grid))
        places.append(grid.rows[0].rank)
    for row in grid.rows:
        chosen = row.rank == look.selected
        cursor = look.cursor if chosen else None
        drawn = grid_row(row, grid, seen, cursor)
        hit = look.hits.get(row.rank, "")
        gate = gutter(row, grid.many_stages, tail, hit, below=tall > 1)
        lines.append(line(_name(row, chosen), *drawn.line(), gate))
        if tall > 1:
            unit, ns = _unit(row)
            lines.append(line(_label(unit), *_lower(row, seen, ns).line(),
                              gutter_below(row, tail, hit)))  # fmt: skip
        if tall >= FLIGHT:
            lines.append(line(_label("flight"), *flight_row(row, grid.tick, seen).line()))
        lines += [()] * gap
        places += [row.rank] * (tall + gap)
    return lines, places


def _label(text: str) -> Segment:
    return Segment(f"{text:>{NAME - 1}} ", "faint")


def _unit(row: TickRow) -> tuple[str, int]:
    """Return the unit of the row's durations: (unit, ns of one unit)."""
    spans = [cell.span for cell in row.cells if cell.span is not None]
    longest = max((s.t1_ns - s.t0_ns for s in spans if s.t1_ns is not None), default=0)
    if not longest:
        return "", 0
    return ("µs", 1000) if longest < 10**6 else ("ms", 10**6) if longest < 10**10 else ("s", 10**9)


def _lower(row: TickRow, seen: Window, unit_ns: int) -> Row:
    """Draw the second line of the boxes: each action's duration, if it fits; with unit 0 empty."""
    drawn = Row(seen.cells)
    for cell in row.cells:
        if cell.span is None or not seen.shows(cell.tick) or cell.state in ("plan", "next"):
            continue
        at, body = seen.x(cell.tick) + 1, seen.width - 1
        bright = cell.state in ("last", "running")
        style = f"action.{cell.kind}.now" if bright else token(cell.kind, cell.microbatch) + ".low"
        drawn.fill(at, at + body, " ", style)
        if cell.span.t1_ns is not None and unit_ns:
            text = str(round((cell.span.t1_ns - cell.span.t0_ns) / unit_ns))
            drawn.put(at, text if len(text) <= body else "", style)
    return drawn


def _heading(grid: TickGrid) -> Line:
    return line(
        " ", Segment(grid.label, "title"), Segment(f"  step {grid.step}  tick ", "dim"),
        Segment(str(grid.tick), "held"), Segment(f" of {grid.num_ticks}", "dim"),
    )  # fmt: skip


def _name(row: TickRow, chosen: bool) -> Line:
    stages = ",".join(map(str, row.stages))
    stage = f"s{stages}" if len(stages) < 5 else stages
    rank = f"r{row.rank:<2} "
    return line(
        Segment("▸" if chosen else " ", "accent"),
        Segment(rank, "strong" if chosen else ""),
        Segment(left(stage, NAME - 1 - len(rank)), "dim"),
    )


# -- under the grid


def words(grid: TickGrid) -> Words:
    """Draw the grid's last tick, the waiting ranks, and the next tick."""
    waits = {row.rank: row.waits_for for row in grid.rows if row.waits_for is not None}
    coming = {row.rank: row.coming for row in grid.rows if row.coming is not None}
    ran = {row.rank: row.ran for row in grid.rows}
    if not grid.tick and not any(ran.values()):
        return did("no tick yet", None, waits, coming, grid.many_stages)
    number = "" if grid.column is None else f" {grid.column}"
    return did(f"tick{number}", ran, waits, coming, grid.many_stages)


def _foot(
    ticks: Ticks, grid: TickGrid, look: TickPageState, cells: int, rows: int, with_flight: bool
) -> list[Line]:
    """Draw the text for the last tick, microbatches in flight, and the selected cell."""
    lines: list[Line] = [()] if rows >= 20 else []
    lines += _wrapped(words(grid), cells - 2, 2 if rows < 30 else 3)
    lines += [flight(grid, cells)] * with_flight
    cell = ticks.cell
    if cell is not None and (cell.rank, cell.action) == (look.selected, look.cursor):
        lines += [()] * (rows >= 30) + _cell_facts(cell, grid.many_stages, cells)
    return lines


def _wrapped(parts: Words, cells: int, most: int) -> list[Line]:
    """Return text on several lines, broken between its parts."""
    lines: list[list[Segment]] = [[]]
    used = 0
    for text, style in parts:
        if used + len(text.rstrip()) > cells and used:
            if len(lines) == most:
                lines[-1].append(Segment(" …", "faint"))
                break
            lines.append([])
            used, text = 0, text.lstrip(" ·;")
        lines[-1].append(Segment(text, style))
        used += len(text)
    return [fit(line("  ", *row), cells + 2) for row in lines]


def flight(grid: TickGrid, cells: int) -> Line:
    """Draw microbatches in flight on each rank, with the number that the schedule allows."""
    parts: list[Segment] = [Segment("  in flight ", "dim")]
    for row in grid.rows:
        bound = row.in_flight_bound
        full = "■" * min(row.in_flight, 9) + "□" * max(0, min(bound or 0, 9) - row.in_flight)
        number = f"{row.in_flight}/{bound}" if bound is not None else str(row.in_flight)
        bar = full if cells >= 60 + 16 * len(grid.rows) else ""
        parts += [Segment(f"r{row.rank} ", "dim"), Segment(f"{bar} " if bar else "", "flight"),
                  Segment(f"{number}  ")]  # fmt: skip
        if line_width(parts) > cells - 20:
            parts.append(Segment("… ", "faint"))
            break
    parts += [Segment(" done ", "dim"), Segment(f"{grid.num_done} of {grid.num_actions}")]
    return fit(parts, cells)


def _cell_facts(cell: CellDetail, many_stages: bool, cells: int) -> list[Line]:
    """Draw the selected cell's facts: duration and median, bytes in and out, waiting ranks."""
    head: list[Segment] = [
        Segment(f"r{cell.rank} {cell.action} ", "strong"),
        Segment(f"tick {cell.tick} ", "dim"),
    ]  # fmt: skip
    if cell.duration_ns is None:
        head.append(Segment("has not run", "dim"))
    elif cell.runs:
        head.append(Segment(f"runs, {duration(cell.duration_ns)} so far", "accent"))
    else:
        head.append(Segment(duration(cell.duration_ns), "strong"))
    if cell.median_ns is not None:
        text = f"  median {duration(cell.median_ns)} of {cell.num_like_it}"
        head.append(Segment(text, "dim"))
    parts: list[Segment] = []
    for word, arrow, moved in (("in", "◂", cell.received), ("out", "▸", cell.sent)):
        parts += [Segment(f"{word} ", "dim"), Segment(moved_text(moved, arrow), ""), Segment("  ")]
    if cell.waited_ns and cell.needs:
        parts.append(Segment(f"waited {duration(cell.waited_ns)} for {cell.needs}  "))
    actions = ", ".join(f"r{rank} {short(action, many_stages)} {duration(ns)}"
                    for rank, action, ns in cell.waiters)  # fmt: skip
    parts += [
        Segment("waited for by ", "dim"),
        Segment(actions or "nobody", "warn" if actions else ""),
    ]
    return inspected(head, parts, cells)


def legend(grid: TickGrid, cells: int) -> Line:
    """Draw the meaning of the page's letters and signs."""
    kinds = sorted({cell.kind for row in grid.rows for cell in row.cells if cell.kind in KIND_WORD},
                   key="FBIW".index)  # fmt: skip
    parts: list[Segment] = [Segment("  ")]
    for kind in kinds:
        word = (KIND_WORD if cells >= _WIDE else _SHORT)[kind]
        parts += [Segment(kind, f"plan.{kind}"), Segment(f" {word}  ", "dim")]
    first = kinds[0] if kinds else "F"
    parts += [
        Segment(" done ", f"action.{first}.even"), Segment(" "),
        Segment(" last ", f"action.{first}.now"), Segment(" "),
        Segment("▕", "accent"), Segment("next", f"next.{first}"), Segment("▏", "accent"),
        Segment(" plan", f"ahead.{first}"),
    ]  # fmt: skip
    waits = Segment("  ◂ waits for", "warn")
    return (*parts, waits) if line_width((*parts, waits)) <= cells else fit(parts, cells)
