"""A schedule table on the tick grid, without a job: figures, lint's verdict, the chosen cell."""

from __future__ import annotations

from dataclasses import dataclass

from pardbg.analysis.pipeline.dependencies import parse
from pardbg.analysis.pipeline.ticks.grid import TickCell, TickGrid
from pardbg.lab.schedules.compare import Predicted
from pardbg.lab.schedules.sheet import Placed, Sheet
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
from pardbg.render.draw.svg import Svg
from pardbg.render.pages.pipeline import tick_page
from pardbg.render.pages.pipeline.schedule import token
from pardbg.render.pages.pipeline.tick_row import Window, ruler, window
from pardbg.words import duration, percent, plural

TAIL = 13
"""Cells at the right for the rank that a rank waits for."""


@dataclass(frozen=True, slots=True)
class TableLook:
    """State of the view of a table."""

    name: str
    costs: str
    """Source of the durations, in words."""
    rank: int = 0
    tick: int | None = None
    """Tick of the selected cell; None: the row is empty."""
    now: int = 0
    """Number of ticks that have run."""
    by_time: bool = False
    mark: str = ""
    """Text of the marked action."""
    changed: bool = False
    stale: bool = False
    """Whether the figures are of the table before the last key."""
    was: Predicted | None = None
    """Prediction for the file as it was opened."""


def table_page(sheet: Sheet, look: TableLook, cells: int, rows: int) -> Picture:
    """Return the page at ``cells`` x ``rows``."""
    grid = sheet.grid(look.now)
    row = sheet.rows[look.rank] if look.rank < len(sheet.rows) else ()
    chosen = next((one for one in row if one.tick == look.tick), None)
    foot = [*_figures(sheet, look, cells), *_verdict(sheet, look, chosen, cells, rows)]
    foot += _inspected(sheet, chosen, cells) if chosen is not None else [(), ()]
    foot += [tick_page.legend(grid, cells)] if rows >= 20 else []
    head = [_title(sheet, grid, look, cells)]
    room = rows - len(foot) - 3
    if look.by_time and sheet.times:
        body, places = _timed(sheet, look, cells)
        head.append(())
    else:
        seen = _window(grid, look, cells)
        more = tick_page.beyond(seen, grid)
        free = cells - line_width(more) - tick_page.NAME - 1
        numbers = ruler(seen, grid.tick, grid.num_ticks, free).line()
        head.append(spread(line(" " * tick_page.NAME, *numbers), more, cells))
        ticks = tick_page.TickPageState(look.rank, look.tick)
        body, places = tick_page.grid_lines(
            grid, seen, ticks, TAIL, tick_page.row_height((grid,), room), False
        )
    if len(body) < room:
        body, foot = [*body, (), *foot], []
    focus = places.index(look.rank) if look.rank in places else None
    return Picture(tuple(head), tuple(body), tuple(foot), focus=focus, rows=tuple(places))


def cell_at(sheet: Sheet, look: TableLook, cells: int, rank: int, x: int) -> TickCell | None:
    """Return the action drawn at column ``x`` of a rank's row."""
    grid = sheet.grid(look.now)
    seen = _window(grid, look, cells)
    return None if look.by_time else tick_page.cell_under(grid.rows, seen, rank, x)


def _window(grid: TickGrid, look: TableLook, cells: int) -> Window:
    at = look.tick if look.now >= grid.num_ticks and look.tick is not None else look.now
    return window((grid,), cells - tick_page.NAME - TAIL - 1, at)


def _title(sheet: Sheet, grid: TickGrid, look: TableLook, cells: int) -> Line:
    table = sheet.table
    virtual = max((len(row.stages) for row in grid.rows), default=1)
    shape = f"  p={len(table.rows)} m={table.num_microbatches}" + f" v={virtual}" * (virtual > 1)
    start = line(
        " ", Segment(look.name, "strong"), Segment(" changed" if look.changed else "", "warn"),
        Segment(shape, "dim"), Segment("  by time" if look.by_time else "  by tick", "accent"),
        Segment(f"  taken up: {look.mark}" if look.mark else "", "held"),
    )  # fmt: skip
    end = line(Segment("tick ", "dim"), Segment(str(grid.tick), "held"),
               Segment(f" of {grid.num_ticks} ", "dim"))  # fmt: skip
    return spread(start, end, cells)


def _timed(sheet: Sheet, look: TableLook, cells: int) -> tuple[list[Line], list[int]]:
    """Draw a row per rank, with actions as long as their durations."""
    room = cells - tick_page.NAME - 2
    ends = max(end for _, end in sheet.times.values())
    many = sheet.num_stages > len(sheet.rows)
    lines: list[Line] = []
    for rank, row in enumerate(sheet.rows):
        drawn = Row(room + 1)
        for one in row:
            begin, end = (round(t / ends * room) for t in sheet.times[one.op.text])
            chosen = rank == look.rank and one.tick == look.tick
            style = f"action.{one.op.kind}.now" if chosen else token(one.op.kind, one.op.microbatch)
            drawn.fill(begin, end, " ", style)
            text = one.op.text if many else one.op.text.removeprefix(str(one.op.stage))
            drawn.put(begin, text if len(text) < end - begin else "", style)
        stages = ",".join(str(s) for s in sorted({one.op.stage for one in row}))
        mark = Segment("▸" if rank == look.rank else " ", "accent")
        lines += [line(mark, Segment(left(f"r{rank}", 4)), Segment(left(f"s{stages}", 6), "dim"),
                       *drawn.line()), ()]  # fmt: skip
    return lines, [rank for rank in range(len(sheet.rows)) for _ in (0, 1)]


# -- under the grid


def _figures(sheet: Sheet, look: TableLook, cells: int) -> list[Line]:
    """Draw step, bubble and messages beside the file's; activations per rank and stage."""
    one, was = sheet.predicted, look.was
    parts: list[Segment] = []
    for name, value, before in (
        ("step", duration(one.step_ns), duration(was.step_ns) if was else ""),
        ("bubble", percent(one.bubble_fraction), percent(was.bubble_fraction) if was else ""),
        ("messages", str(one.num_messages), str(was.num_messages) if was else ""),
    ):
        parts += [Segment(f"  {name} ", "dim"), Segment(value, "strong")]
        parts.append(Segment(f" (was {before})" if was and before != value else "", "dim"))
    parts.append(Segment(f"  predicted by {look.costs}", "faint"))
    parts.append(Segment("  …" if look.stale else "", "warn"))
    peaks = "  ".join(f"s{stage} {count}" for stage, count in enumerate(sheet.stage_peaks))
    lines = [line(*parts), line(Segment("  most in flight ", "dim"), Segment(peaks))]
    if look.now < sheet.num_ticks:
        lines.append(tick_page.flight(sheet.grid(look.now), cells))
    return [fit(row, cells) for row in lines]


def _verdict(
    sheet: Sheet, look: TableLook, chosen: Placed | None, cells: int, rows: int
) -> list[Line]:
    """Draw lint's verdict, with the problems of the selected cell first."""
    found = sheet.predicted.verdict
    if found.good:
        return [fit(line(Segment("  ● good", "good"), Segment(": runs on every transport", "dim")),
                    cells), ()]  # fmt: skip
    here = sheet.problems_at(look.rank, chosen.at) if chosen is not None else ()
    rest = [p for p in found.problems if p not in here]
    most = 2 if rows < 30 else 5
    lines = [line(Segment(f"  ✗ {found.word}", "bad"),
                  Segment(f"  {plural(len(found.problems), 'problem')}", "dim"))]  # fmt: skip
    lines += [line(Segment(f"    {p.line()}", "warn" if p in here else ""))
              for p in [*here, *rest][:most]]  # fmt: skip
    return [fit(row, cells) for row in lines]


def _inspected(sheet: Sheet, one: Placed, cells: int) -> list[Line]:
    """Draw the selected cell: its time, place in the file, its input and the user of its output."""
    text = one.op.text
    place = f"tick {one.tick}  row {one.rank + 1}, column {one.at + 1}  "
    head = [
        Segment(f"r{one.rank} {text} ", "strong"), Segment(place, "dim"),
    ]  # fmt: skip
    begin, end = sheet.times.get(text, (None, None))
    if begin is not None and end is not None:
        head += [Segment(duration(end - begin), "strong"),
                 Segment(f" from {duration(begin)} to {duration(end)}", "dim")]  # fmt: skip
    elif not one.runs:
        head.append(Segment("never begins", "bad"))
    needed = sheet.needs(one.op)
    source = f"{needed.op.text} (r{needed.rank}, tick {needed.tick})" if needed else "nothing"
    takers = [o for row in sheet.rows for o in row if sheet.needs(o.op) == one]
    to = " ".join(f"{o.op.text} (r{o.rank}, tick {o.tick})" for o in takers) or "nobody"
    foot = [Segment("needs ", "dim"), Segment(source),
            Segment("  taken by ", "dim"), Segment(to), *_waited(sheet, one, begin)]  # fmt: skip
    return inspected(head, foot, cells)


def _waited(sheet: Sheet, one: Placed, begin: float | None) -> tuple[Segment, ...]:
    """Return how long the rank was idle before the action."""
    row = sheet.rows[one.rank]
    before = row[row.index(one) - 1] if row.index(one) else None
    free = sheet.times.get(before.op.text, (0.0, 0.0))[1] if before is not None else 0.0
    if begin is None or begin - free < 1:
        return ()
    return (Segment(f"  rank idle {duration(begin - free)} before", "warn"),)


# -- as a picture file

_ROW, _LEFT, _STYLE = (
    26,
    34,
    """<style>
svg { background: #fbfbf9; font: 11px sans-serif } .t { fill: #2c343d }
.F { fill: #7fb6ea } .B { fill: #eda64f } .I { fill: #d88fb4 } .W { fill: #b9c763 }
.odd { opacity: .8 } .idle { fill: #eceff1 } .c { fill: #14202b; text-anchor: middle }
</style>""",
)


def svg(sheet: Sheet, width: int = 900) -> str:
    """Return the schedule by time as an SVG picture; by ticks if the table cannot run."""
    times = dict(sheet.times) or {
        one.op.text: (one.tick - 1.0, float(one.tick)) for row in sheet.rows for one in row
    }
    whole = max((end for _, end in times.values()), default=1.0)
    scale = (width - _LEFT - 4) / whole
    step, bubble = sheet.predicted.step_ns, sheet.predicted.bubble_fraction
    said = f"step {duration(step)}, bubble {percent(bubble)}" if step else "cannot run"
    made = Svg(width, _ROW * len(sheet.rows) + 22, said)
    many = sheet.num_stages > len(sheet.rows)
    for rank, row in enumerate(sheet.rows):
        y = rank * _ROW
        made.text(2, y + 16, f"r{rank}")
        made.rect(_LEFT, y + 2, whole * scale, _ROW - 4, "idle")
        for one in row:
            begin, end = (t * scale for t in times[one.op.text])
            action = parse(one.op.text)
            text = one.op.text if many or action is None else f"{action.kind}{action.microbatch}"
            odd = " odd" if one.op.microbatch % 2 else ""
            made.rect(_LEFT + begin, y + 2, end - begin - 0.7, _ROW - 4, f"{one.op.kind}{odd}")
            if len(text) * 6.3 <= end - begin:
                made.text(_LEFT + (begin + end) / 2, y + 17, text, "c")
    peaks = ", ".join(f"s{stage} {count}" for stage, count in enumerate(sheet.stage_peaks))
    made.text(_LEFT, _ROW * len(sheet.rows) + 15, f"{said}; most in flight {peaks}")
    size = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
    return made.markup().replace("<svg ", size, 1).replace(">", f">{_STYLE}", 1) + "\n"
