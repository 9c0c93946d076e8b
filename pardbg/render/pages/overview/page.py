"""The overview page: a row per rank and, if there is room, the run's course over its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pardbg.analysis.answers.ranks import RankNow
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.base.run import OutputLine
from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.pipeline.implied import ScheduleDetail
from pardbg.render.draw.bars import Column, abreast, choose, headings, panel_widths, rule, table_row
from pardbg.render.draw.cells import Drawn, Line, Picture, Segment, fit, line, plain, wrap
from pardbg.render.frame.host_panel import machine
from pardbg.render.frame.panels import empty, no_match
from pardbg.render.frame.step_charts import SIDE_CELLS, Ahead, Event, phases, side, step_charts
from pardbg.render.pages.findings import judged, told
from pardbg.render.pages.mesh.run_verdict import verdict, worst_of
from pardbg.render.pages.output import output_lines
from pardbg.render.pages.overview.rank_table import (
    DRAWN,
    FRONT_CELLS,
    WIDE,
    columns_of,
    legend_of,
    line_of,
    rule_of,
    strip_ticks,
)
from pardbg.render.pages.pipeline.compact import compact
from pardbg.render.pages.pipeline.ledger import path_text
from pardbg.words import rank_named

_FRONT = 22
"""Rows beside the ranks' from which on the charts are above the ranks."""
_MOST_LINES = 6
"""Maximum lines of output for which the panels below the ranks get taller."""
_TALLEST = 3
"""Maximum lines of a rank's strip."""


@dataclass(frozen=True, slots=True)
class OverviewPageState:
    selected: int | None = None
    contains: str = ""
    """Text of the filter: only ranks with this text in their row are shown."""
    ahead: Ahead | None = None
    """Step times and losses of a recording after the cursor."""
    looking: bool = False
    """Whether findings of this moment are still being searched."""
    known: Sequence[Finding] = ()
    """All findings of a recording, including those after the cursor."""
    measure: int = 0
    """Index of the mesh's first shown measure."""
    turned: int = 0
    """Number of the mesh's axes that are turned behind the others."""
    detail: ScheduleDetail | None = None
    """The schedule of the step at the cursor, if the page has room for it."""
    ascii: bool = False
    """Whether the terminal lacks block characters: a rank of the mesh is a digit, a step a sign."""
    events: Sequence[Event] = ()
    """Where errors and warnings begin on the axis of steps."""
    columns: Sequence[str] = ()
    """Titles of the columns that the user chose; empty: as many as fit."""


def overview(
    snapshot: Snapshot,
    cells: int,
    rows: int,
    look: OverviewPageState | None = None,
    printed: Sequence[OutputLine] = (),
) -> Picture:
    """Draw the page at ``cells`` x ``rows``; ``printed``: the job's last output lines, shown if
    there is room."""
    look = look or OverviewPageState()
    if not snapshot.ranks:
        return empty(cells, rows, "No rank has reported yet.",
                     "The agent starts with the first process group or collective.",
                     "9 Output shows what the job prints.")  # fmt: skip
    columns = choose(columns_of(snapshot, cells, look.ascii, look.columns), cells - 3)
    shown = _matching(snapshot.ranks, columns, look.contains, cells)
    if not shown:
        return no_match(cells, rows)
    places = tuple(rank.rank for rank in shown)
    said = [()] if look.looking else verdict(snapshot, look.known, cells)
    over = (rule_of(columns, cells, look.ascii),) if cells >= FRONT_CELLS else ()
    head = (*said, *over, headings(columns))
    below: list[Line] = []
    front = cells >= FRONT_CELLS and not look.contains
    tall = _tall(columns, rows - len(head), len(shown), front)
    spare = rows - len(head) - tall * len(shown)
    if spare >= 6 and not look.contains:
        front &= spare >= _FRONT
        most = max(5, spare // 3 - (cells < WIDE) * 2) if front else max(2, spare // 3)
        below = _below(snapshot, printed, cells, most, look, front)
        ticks = strip_ticks(snapshot, columns) if tall > 1 and cells >= WIDE else []
        room = spare - len(ticks) - len(below) - (5 if front else 3)
        charts = _charts(snapshot, cells, room, look, front)
        between = () if over else fit(legend_of(columns, look.ascii), cells)
        below = [*ticks, between, *([] if front else charts), *below]
        head = (*said, (), *charts, *head[len(said) :]) if front else head
    places = tuple(rank for rank in places for _ in range(tall))
    focus = places.index(look.selected) if look.selected in places else None
    lines_ = [line_of(snapshot, columns, at, tall, look.ascii) for at in range(tall)]

    def draw(at: int) -> Line:
        rank = shown[at // tall]
        return table_row(lines_[at % tall], rank, cells, rank.rank == look.selected)

    return Picture(head, Drawn(len(places), draw, below), focus=focus, rows=places)


def _matching(
    ranks: Sequence[RankNow], columns: Sequence[Column[RankNow]], contains: str, cells: int
) -> Sequence[RankNow]:
    """Return the ranks with the text in their row, and the rank that the text names."""
    if not contains:
        return ranks
    only, named = rank_named(contains), [one for one in columns if one.title not in DRAWN]
    return [rank for rank in ranks if rank.rank == only
            or contains.lower() in plain(table_row(named, rank, cells)).lower()]  # fmt: skip


def _tall(columns: Sequence[Column[RankNow]], rows: int, number: int, front: bool) -> int:
    """Return the lines of each of ``number`` ranks: several if the charts have room, too."""
    strips = any(column.title == DRAWN[3] for column in columns)
    most = 1 if not strips else _TALLEST if front else 2
    return next((tall for tall in range(most, 1, -1) if rows - tall * number >= _FRONT), 1)


def _charts(
    snapshot: Snapshot, cells: int, room: int, look: OverviewPageState, front: bool
) -> list[Line]:
    """Draw the charts over the steps; beside them the pipeline on a wide screen, else the phases of
    a step."""
    if front and cells >= WIDE:
        size = cells * 9 // 20
        return step_charts(
            snapshot, cells, room, look.ahead, compact(snapshot, size, room, look.detail), size,
            look.events,
        )  # fmt: skip
    beside = side(snapshot, look.selected, room) if cells >= FRONT_CELLS else ()
    return step_charts(snapshot, cells, room, look.ahead, beside, SIDE_CELLS, look.events)


def _below(
    snapshot: Snapshot, printed: Sequence[OutputLine], cells: int, rows: int,
    look: OverviewPageState, front: bool,
) -> list[Line]:  # fmt: skip
    """Draw findings and, on a wide screen, the end of the output, in at most ``rows`` lines; on a
    very wide one after the phases of a step and the machine."""
    printed = printed if cells >= FRONT_CELLS else ()
    full = front and cells >= WIDE
    number = bool(snapshot.findings or front) + bool(printed)
    number += full * (bool(phases(snapshot, cells)) + bool(machine(snapshot, look.selected, cells)))
    sizes = iter(panel_widths(cells, max(1, number)))
    panels: list[tuple[Sequence[Line], int]] = []
    if full:
        for draw in (phases, partial(machine, rank=look.selected)):
            if draw(snapshot, cells=cells):
                panels.append((draw(snapshot, cells=(size := next(sizes))), size))
    if full and panels and look.detail is not None and look.detail.path is not None:
        said = wrap(path_text(look.detail.path), panels[0][1] - 2)
        panels[0] = ([*panels[0][0], (), *(line(" ", Segment(row, "dim")) for row in said)],
                     panels[0][1])  # fmt: skip
    if snapshot.findings or front:
        panels.append((_found(snapshot, size := next(sizes), rows, look.looking), size))
    tall = max([len(panel) for panel, _ in panels], default=_MOST_LINES)
    tall = min(rows, max(tall, min(len(printed), _MOST_LINES) + 1))
    if printed:
        panels.append((_last(snapshot, printed, size := next(sizes), tall), size))
    return abreast([(panel[:tall], size) for panel, size in panels])


def _found(snapshot: Snapshot, cells: int, rows: int, looking: bool) -> list[Line]:
    """Draw the findings under their heading; without findings, the checks that were made."""
    said = worst_of(snapshot) if snapshot.hang is None else None
    if snapshot.findings:
        lines_ = told(snapshot.findings, cells - 2, said, rows - 1)
    else:
        lines_ = judged(snapshot, cells - 2) if not looking else [(Segment("looking …", "dim"),)]
    head = rule("findings", cells, "8 has all" if snapshot.findings else "none now")
    return [head, *(line(" ", row) for row in lines_)]


def _last(snapshot: Snapshot, printed: Sequence[OutputLine], cells: int, rows: int) -> list[Line]:
    """Draw the end of the output, under its heading."""
    return [rule("output", cells, "9 has all"), *(
        row for entry in printed[-(rows - 1) :]
        for row in output_lines(entry, snapshot.t_begin_ns, cells, 1)
    )]  # fmt: skip


def lines(picture: Picture) -> tuple[Line, ...]:
    """Return all lines of a picture, top to bottom."""
    return (*picture.head, *picture.body, *picture.foot)
