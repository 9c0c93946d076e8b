"""Rows of the tick grid, in which every cell has the same width, and no other contents.

A cell is a gap and a body. The body of a done action is filled; of the last tick it is bright; the
next action is between two edges; the rest of the plan is dim. Gates and waits are in a separate
gutter at the right.
"""

from __future__ import annotations

from dataclasses import dataclass

from pardbg.analysis.pipeline.ticks.grid import TickCell, TickGrid, TickRow
from pardbg.render.draw.bars import spark
from pardbg.render.draw.cells import Line, Row, Segment, clean, clip, fit, line, line_width
from pardbg.render.frame.control_words import short
from pardbg.render.pages.pipeline.schedule import HELD, short_next, token

WIDEST = 6
"""Maximum width of a cell: longer rows are harder to follow."""
EDGES = "▕▏"
CURSOR = "[]"
NOBODY = "·"
"""Sign for a tick without an action."""
WAITS = "◂"


@dataclass(frozen=True, slots=True)
class Window:
    """The ticks that fit; all rows of all grids show the same ticks."""

    first: int
    """Number of the first tick, from 1."""
    number: int
    """Number of ticks."""
    width: int
    """Cells per tick, including the gap before the body."""

    @property
    def cells(self) -> int:
        return self.number * self.width + 1  # and an edge after the last

    def x(self, tick: int) -> int:
        """Return the column of a tick's gap."""
        return (tick - self.first) * self.width

    def shows(self, tick: int) -> bool:
        return self.first <= tick < self.first + self.number


def window(grids: tuple[TickGrid, ...], room: int, at: int) -> Window:
    """Return as many ticks as fit in ``room`` cells: tick ``at`` and mostly ones before it."""
    most = max((grid.num_ticks for grid in grids), default=1)
    labels = (
        len(short(cell.action, grid.many_stages))
        for grid in grids for row in grid.rows for cell in row.cells
    )  # fmt: skip
    least = max(3, max(labels, default=2) + 1)
    width = min(max(least, (room - 1) // max(most, 1)), max(WIDEST, least))
    number = max(1, min(most, (room - 1) // width))
    first = min(max(1, at - number * 2 // 3), most - number + 1)
    return Window(first, number, width)


def ruler(seen: Window, tick: int, num_ticks: int, cells: int) -> Row:
    """Return the numbers of the ticks, as many as fit in ``cells``; always the last tick's."""
    row, room = Row(seen.cells), min(seen.cells, cells)
    if seen.shows(tick):
        row.put(seen.x(tick) + 1, str(tick), "held")
    step = 1 if seen.width >= len(str(num_ticks)) + 2 else 2 if seen.width >= 3 else 5
    for number in range(seen.first, min(num_ticks, seen.first + seen.number - 1) + 1):
        at, text = seen.x(number) + 1, str(number)
        free = all(row.blank(x) for x in range(at - 1, min(at + len(text) + 1, row.size)))
        if (number - 1) % step == 0 and number != tick and free and at + len(text) <= room:
            row.put(at, text, "dim" if number < tick else "faint")
    return row


def grid_row(row: TickRow, grid: TickGrid, seen: Window, cursor: str | int | None) -> Row:
    """Draw one rank's cells; ``cursor`` is the selected action, or the selected tick."""
    drawn = Row(seen.cells)
    taken = {cell.tick for cell in row.cells}
    ahead = any(c.tick > grid.tick and c.state in ("done", "last") for c in row.cells)
    for tick in range(seen.first, min(grid.tick, seen.first + seen.number - 1) + 1):
        if tick not in taken:
            waits = tick == grid.tick and row.waits_for and not ahead
            drawn.put(seen.x(tick) + 1, *((WAITS, "warn") if waits else (NOBODY, "faint")))
    for cell in row.cells:
        if seen.shows(cell.tick):
            _cell(drawn, cell, grid.many_stages, seen)
    for cell in row.cells:  # edges stand in the gaps, on whichever side of a filled body
        if seen.shows(cell.tick):
            at = seen.x(cell.tick)
            marks = (
                CURSOR
                if cursor in (cell.action, cell.tick)
                else EDGES
                if cell.state == "next"
                else ""
            )
            if marks:
                style = "strong" if marks is CURSOR else "accent"
                drawn.put(at, marks[0], style)
                drawn.put(at + seen.width, marks[1], style)
    return drawn


def _cell(drawn: Row, cell: TickCell, many_stages: bool, seen: Window) -> None:
    at, body = seen.x(cell.tick) + 1, seen.width - 1
    text = short(cell.action, many_stages)
    kind = cell.kind if cell.kind in "FBIW" else "X"
    if cell.state in ("plan", "next"):
        style = f"{'next' if cell.state == 'next' else 'ahead'}.{kind}"
        drawn.put(at, text[:body], style)
        return
    style = token(cell.kind, cell.microbatch)
    if cell.state in ("last", "running"):
        style = f"action.{kind}.now"
    drawn.fill(at, at + body, " ", style)
    drawn.put(at, text[:body], style)
    if cell.state == "running" and len(text) < body:
        drawn.put(at + body - 1, "▸", style)


def flight_row(row: TickRow, tick: int, seen: Window) -> Row:
    """Draw microbatches in flight after each tick up to ``tick``, compared to the maximum that the
    schedule allows, and the present number."""
    drawn, after, kept = Row(seen.cells), 0, row.kept
    most = max([row.in_flight_bound or 0, 1, *(level for _, level in kept)])
    ends = [
        *(cell.tick for cell, _ in kept[1:]),
        *(max(cell.tick, tick) + 1 for cell, _ in kept[-1:]),
    ]
    for (cell, level), until in zip(kept, ends, strict=True):
        at, after = (min(max(seen.x(tick), 0), seen.cells - 1) for tick in (cell.tick, until))
        drawn.fill(at + 1, after + 1, spark([level], 1, 0, most) if level else " ", "flight.curve")
    bound = f" of at most {row.in_flight_bound}" if row.in_flight_bound is not None else ""
    text = f"{row.in_flight}{bound}"
    drawn.put(after + 2, text if after + 2 + len(text) <= seen.cells else "", "flight")
    return drawn


def gutter(row: TickRow, many_stages: bool, cells: int, hit: str = "", below: bool = False) -> Line:
    """Draw the rank's gate, in exactly ``cells`` cells, and the rank that it waits for, if that is
    not in the line ``below``; ``hit``: the breakpoint or watch that holds the rank."""
    waits = "" if below else _waits(row)
    parts: list[Segment] = [Segment("┊ ", "faint")]
    if row.gate:
        text = clean(short_next(row.gate, many_stages))
        room = max(8, cells - (12 if waits else 5))
        sign, style = ("●", "alarm.warn") if hit else (HELD, "held")
        parts += [Segment(f"{sign} {clip(text, room)}", style), Segment(" ")]
    fits = line_width((*parts, Segment(waits))) <= cells
    parts.append(Segment(waits if fits else f"{WAITS} {row.waits_for}", "warn"))
    return fit(line(*parts), cells)


def gutter_below(row: TickRow, cells: int, hit: str = "") -> Line:
    """Draw the gutter's second line: what holds the rank, what it waits for, or that it may go."""
    text, style = (hit, "held") if hit else (_waits(row), "warn")
    if not text and row.gate and row.coming:
        text, style = "may go", "dim"
    return fit(line(Segment("┊ ", "faint"), Segment(text, style)), cells)


def _waits(row: TickRow) -> str:
    whose = f" r{row.waits_rank}" if row.waits_rank is not None else ""
    return f"{WAITS} {row.waits_for}{whose}" if row.waits_for is not None else ""
