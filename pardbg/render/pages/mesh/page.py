"""The overview of many ranks: two measures of every rank as squares in mesh order, the rank and the
axis that stand out, and the run's course below."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pardbg import words
from pardbg.analysis.answers.ranks import RankNow
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.render.draw.bars import rule, thin
from pardbg.render.draw.cells import (
    Line,
    Picture,
    Row,
    Segment,
    clean,
    clip,
    fit,
    left,
    line,
    line_width,
    right,
)
from pardbg.render.draw.squares import CELLS, PER_LINE, squares
from pardbg.render.frame.activity import activity_text, now_title
from pardbg.render.frame.step_charts import SIDE_CELLS, side, step_charts
from pardbg.render.pages.findings import brief
from pardbg.render.pages.mesh.measures import (
    LEVELS,
    Measure,
    by_coordinate,
    drawn,
    measures,
)
from pardbg.render.pages.mesh.run_verdict import verdict
from pardbg.render.pages.mesh.square_layout import SquareLayout, lay_out
from pardbg.render.pages.overview.page import OverviewPageState
from pardbg.render.pages.overview.rank_table import FRONT_CELLS, costs_of

_SIDE, _SIDE_FROM = 26, 112
"""Cells of the coordinates' column, and minimum cells of a page with this column."""
_CHARTS, _CHARTS_FROM = 10, 32
"""Rows of the charts below, and minimum rows of a page with charts."""
_GAP = 3
_WORDS = 36
"""Cells of a measure's name and scale: two measures are as wide as the narrowest page."""
_EVERY = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_LABELS = 6
"""Cells of a row's coordinate, the mark included."""


def mesh(snapshot: Snapshot, cells: int, rows: int, look: OverviewPageState) -> Picture:
    """Draw the page at ``cells`` x ``rows``."""
    said = [()] if look.looking else verdict(snapshot, look.known, cells)
    head = [*said, ()] if rows >= _CHARTS_FROM else said
    layout, number = layout_of(snapshot, cells, rows, look)
    made = measures(snapshot.ranks)
    shown = [made[(look.measure + at) % len(made)] for at in range(number)]
    grid = _grid(snapshot, layout, shown, look.selected, cells)
    body = [_title(layout, cells), *grid]
    first = 2 + _num_heads(layout)
    places = [at - first if first <= at < first + layout.lines else -1 for at in range(len(body))]
    spare = rows - len(head) - len(body)
    if spare >= 8:
        beside = side(snapshot, look.selected, spare - 3) if cells >= FRONT_CELLS else ()
        body += [(), *step_charts(
            snapshot, cells, spare - 3, look.ahead, beside, SIDE_CELLS, look.events
        )]  # fmt: skip
    found = [line("  ", row) for row in brief(snapshot.findings, cells - 4)]
    body += found[: max(0, rows - len(head) - len(body))]
    return Picture(tuple(head), body, rows=(*places, *[-1] * (len(body) - len(places))))


def _grid(
    snapshot: Snapshot, layout: SquareLayout, shown: Sequence[Measure], selected: int | None,
    cells: int,
) -> list[Line]:  # fmt: skip
    """Draw the measures beside each other, with the outliers beside them."""
    marked = _blamed(snapshot)
    here = {rank.rank for rank in snapshot.ranks}
    panels = [_panel(layout, measure, marked, here, selected) for measure in shown]
    side = _side(snapshot, selected, shown[0]) if cells >= _SIDE_FROM else []
    size, edge = _width(layout) + _GAP, cells - _SIDE - 3
    lines = []
    for at in range(max(len(panels[0]), len(side))):
        parts = [fit(panel[at] if at < len(panel) else (), size) for panel in panels]
        row = line(" ", *parts)
        if side:
            row = line(fit(row, edge), Segment("│ ", "rule"), side[at] if at < len(side) else ())
        lines.append(fit(row, cells))
    return lines


def layout_of(
    snapshot: Snapshot, cells: int, rows: int, look: OverviewPageState
) -> tuple[SquareLayout, int]:
    """Return the layout of the squares for a page of this size, and the number of measures: two, or
    one if only one measure has room for a square per rank."""
    turned = snapshot.mesh.turn(look.turned)
    num_ranks = max(snapshot.run.world_size, *(rank.rank + 1 for rank in snapshot.ranks))
    room = cells - 1 - (_SIDE + 3 if cells >= _SIDE_FROM else 0)
    lines = rows - (8 + _CHARTS if rows >= _CHARTS_FROM else 7)
    sizes = {number: room // number - _LABELS - _GAP for number in (2, 1)}
    two, one = (lay_out(turned, num_ranks, size, lines, look.ascii) for size in sizes.values())
    return (two, 2) if two.each <= one.each else (one, 1)


def square_at(layout: SquareLayout, row: int, x: int | None) -> int:
    """Return the rank at column ``x`` of the grid's line ``row`` (None: its first); -1: none."""
    x = 0 if x is None else (x - 1) % (_width(layout) + _GAP) - _LABELS
    found = layout.rank_at(row * PER_LINE[layout.form], x // CELLS[layout.form])
    return -1 if found is None else found


def _blamed(snapshot: Snapshot) -> set[int]:
    """Return the culprits of all faults."""
    culprits = snapshot.hang.culprits if snapshot.hang is not None else ()
    return {*culprits, *costs_of(snapshot.findings)}


def _title(layout: SquareLayout, cells: int) -> Line:
    axes = layout.mesh.axes
    shape = " × ".join(f"{clean(axis.name) or 'of'} {axis.size}" for axis in axes)
    note = "a square is a rank" if layout.each == 1 else (
        f"a square is {layout.each} ranks, the most of them shown"
    )  # fmt: skip
    if len(axes) > 1:
        note += f"; side by side: {clean(axes[-1].name) or 'neighbours'} 0–{axes[-1].size - 1}"
    return line(" ", rule(f"mesh  {shape}", cells - 2, note))


def _width(layout: SquareLayout) -> int:
    """Return the cells of a measure: of its squares, or of its name and scale if wider."""
    return max(_LABELS + layout.cells, _WORDS)


def _num_heads(layout: SquareLayout) -> int:
    return int(layout.folds > 1) + int(layout.blocks > 1)


def _panel(
    layout: SquareLayout, measure: Measure, marked: Collection[int], here: Collection[int],
    selected: int | None,
) -> list[Line]:  # fmt: skip
    """Draw a measure's name, the coordinates, the squares, and the scale."""
    size = _width(layout)
    note = clip(f" {measure.note}", max(0, size - len(measure.name)))
    lines = [line(Segment(measure.name, "strong"), Segment(note, "dim"))]
    pointed = next((rank for rank in sorted(marked) if rank in measure.values), None)
    worst = measure.worst
    if pointed is None and worst is not None and measure.is_excess(worst[1]):
        pointed = worst[0]
    style = "accent" if pointed is None else "culprit"
    pointed = selected if pointed is None else pointed
    place = layout.place(pointed) if pointed is not None else None
    lines += _heads(layout, place, style)
    per = PER_LINE[layout.form]
    every = next((n for n in _EVERY if n * layout.each >= 8 or n >= len(layout.rows)), 8)
    rows = drawn(layout, measure, marked, here)
    chosen = layout.place(selected) if selected is not None else None
    for at, row in enumerate(squares(rows, layout.form)):
        y = at * per
        own = place is not None and place[0] // per == at
        label = str((place[0] if own and place is not None else y) * layout.each)
        named = own or y % every == 0
        text = right(label, _LABELS - 2) if named else " " * (_LABELS - 2)
        mark = "▸ " if own else "  "
        if chosen is not None and chosen[0] // per == at and not own:
            mark = "· "
        lines.append(line(Segment(text + mark, style if own else "dim"), row))
    return [*lines, _scale(measure, marked, size)]


def _heads(layout: SquareLayout, place: tuple[int, int] | None, style: str) -> list[Line]:
    """Draw the blocks' coordinates: where the first axis is cut, and the middle axes."""
    middle = layout.mesh.axes[1:-1]
    lines = []
    each = CELLS[layout.form]
    under = [head for head in layout.heads if place is not None and head[0] <= place[1]]
    pointed = under[-1] if under else None
    for kind in ("fold", "block"):
        if (layout.folds if kind == "fold" else layout.blocks) < 2:
            continue
        axes = layout.mesh.axes[:1] if kind == "fold" else middle
        row = Row(layout.cells)
        end = -1
        for column, first, block in layout.heads:
            if kind == "fold" and block:
                continue
            text = f"{first}+" if kind == "fold" else _block_text(layout, block)
            own = pointed is not None and (first, block if kind == "block" else 0) == (
                pointed[1], pointed[2] if kind == "block" else 0
            )  # fmt: skip
            if column * each > end or own:
                row.put(column * each, text, style if own else "dim")
                end = column * each + len(text)
        name = clip(" ".join(clean(axis.name) for axis in axes), _LABELS - 1)
        lines.append(line(Segment(left(name, _LABELS), "faint"), row.line()))
    return lines


def _block_text(layout: SquareLayout, block: int) -> str:
    """Return a block's coordinates on the axes between the first and the last, ``1`` or ``1.0``."""
    found = []
    for axis in reversed(layout.mesh.axes[1:-1]):
        found.append(str(block % axis.size))
        block //= axis.size
    return ".".join(reversed(found))


def _scale(measure: Measure, marked: Collection[int], size: int) -> Line:
    """Draw the meaning of the shades, and the rank that stands out."""
    if not measure.values:
        return line(Segment("not known of any rank", "faint"))
    ends = measure.text(measure.low), measure.text(measure.high)
    ramp = [Segment("██", f"mesh.{measure.style}.{level}") for level in range(LEVELS)]
    parts = line(Segment(f"{ends[0]} ", "dim"), *ramp, Segment(f" {ends[1]}", "dim"))
    worst = measure.worst
    if worst is not None and (not measure.signed or measure.is_excess(worst[1])):
        loud = "culprit" if worst[0] in marked or measure.signed else ""
        said = line(Segment("   "), *([Segment("██ ", "mesh.over")] if measure.signed else []),
                    Segment(f"r{worst[0]} {measure.text(worst[1])}", loud))  # fmt: skip
        if line_width(parts) + line_width(said) <= size:
            parts = line(*parts, *said)
    return parts


def _side(snapshot: Snapshot, selected: int | None, measure: Measure) -> list[Line]:
    """Draw the place of each axis that stands out, whether that is due to one rank or all of the
    place, and the facts of the selected rank."""
    lines: list[Line] = []
    if measure.signed and measure.values:
        lines += _coordinates(snapshot, measure)
    row = next((rank for rank in snapshot.ranks if rank.rank == selected), None)
    return [*lines, *(_chosen(snapshot, row, measure) if row is not None else [])]


def _coordinates(snapshot: Snapshot, measure: Measure) -> list[Line]:
    found = by_coordinate(snapshot.mesh, measure)
    top = max([0.001, *(one.excess for one in found)])
    lines = [line(Segment("by coordinate", "strong"), Segment("  mean, worst", "dim"))]
    for one in found:
        name = clip(clean(snapshot.mesh.axes[one.axis].name) or "of", 6)
        lines.append(line(
            Segment(left(f"{name} {one.at}", 11), "culprit" if one is found[0] else ""),
            Segment(thin(max(0.0, one.excess) / top, 6), "spark"),
            Segment(right(words.change(one.excess), 8)),
        ))  # fmt: skip
    worst = measure.worst
    if worst is not None and measure.is_excess(worst[1]):
        whole = [one for one in found if one.without > measure.high]
        name = f"{clean(snapshot.mesh.axes[whole[0].axis].name)} {whole[0].at}" if whole else ""
        text = f"all of {name}, not one rank" if whole else "one rank, not a whole axis"
        lines.append(line(Segment(text, "dim")))
    return [*lines, ()]


def _chosen(snapshot: Snapshot, row: RankNow, measure: Measure) -> list[Line]:
    axes = zip(snapshot.mesh.axes, snapshot.mesh.coordinates(row.rank), strict=True)
    place = " ".join(f"{clean(axis.name)}{at}" for axis, at in axes if axis.name)
    known = [(now_title(snapshot.run.times), activity_text(row.now)), ("host", clean(row.host))]
    known += _of_device(snapshot, row.rank)
    value = measure.values.get(row.rank)
    known += [
        (measure.name, measure.text(value) if value is not None else words.UNKNOWN),
        ("step", words.duration(row.step_ns[-1]) if row.step_ns else words.UNKNOWN),
        ("wait", words.percent(row.wait_fraction, 0)),
        ("memory", words.binary_size(row.memory_bytes)),
    ]
    head = line(Segment(f"r{row.rank} ", "accent"), Segment(clip(place, _SIDE - 6), "dim"))
    return [head, *(
        line(Segment(left(name, 8), "dim"), Segment(right(clip(text, _SIDE - 10), _SIDE - 9)))
        for name, text in known if text
    )]  # fmt: skip


def _of_device(snapshot: Snapshot, rank: int) -> list[tuple[str, str]]:
    """Return readings of the rank's device."""
    device = next((d for h in snapshot.hosts for d in h.devices if rank in d.ranks), None)
    if device is None:
        return []
    found = [("gpu", f"{device.index}  {clean(device.name)}")]
    if device.clock_mhz:
        found.append(("clock", f"{words.count(device.clock_mhz)} MHz"))
    if device.celsius:
        found.append(("temp", f"{device.celsius} °C"))
    if device.milliwatts:
        found.append(("power", f"{device.milliwatts // 1000} W"))
    return found
