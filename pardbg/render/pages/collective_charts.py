"""What collectives add up to: a line per (group, op, size), charts of bandwidth and skew."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from pardbg import words
from pardbg.analysis.base.matched import CollectiveRow
from pardbg.render.draw.bars import Column, choose, headings, side_by_side
from pardbg.render.draw.cells import Line, Segment, clean, line
from pardbg.render.draw.plots import DOT, WHOLE, Scale, Series, plot

_STYLES: Final = ("spark", "loss", "busy", "bubble", "held", "moving")
"""An op each, as far as they go."""
_LEAST_ROWS: Final = 7


@dataclass(frozen=True, slots=True)
class Sum:
    """All collectives of one kind that are listed."""

    group: str
    op: str
    num_bytes: int
    number: int
    wait_ns: int
    """Summed over ranks and ops."""
    skew_ns: float | None
    """Median."""
    busbw_gbps: float | None
    """Median."""


def sums(rows: Sequence[CollectiveRow]) -> list[Sum]:
    """Per (group, op, size), what cost most waiting first."""
    kinds: dict[tuple[str, str, int], list[CollectiveRow]] = defaultdict(list)
    for row in rows:
        kinds[row.label or row.group, row.op, row.bytes].append(row)
    made = [
        Sum(
            group, op, num_bytes, len(of), sum(row.wait_ns or 0 for row in of),
            _median([row.skew_ns for row in of]), _median([row.busbw_gbps for row in of]),
        )
        for (group, op, num_bytes), of in kinds.items()
    ]  # fmt: skip
    return sorted(made, key=lambda one: (-one.wait_ns, one.group, one.op, -one.num_bytes))


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def summary(rows: Sequence[CollectiveRow], cells: int, limit: int) -> list[Line]:
    """The table in at most ``limit`` lines; nothing where there is no room for three kinds."""
    found = sums(rows)
    if limit < 3 or len(found) < 2:
        return []
    columns = choose(
        [
            Column("by kind", 14), Column("op", 16), Column("bytes", 8, align="right"),
            Column("×", 5, align="right"), Column("waited", 9, align="right"),
            Column("skew", 9, 1, "right"), Column("busbw", 9, 2, "right"),
        ],
        cells - 3,
    )  # fmt: skip
    lines = [headings(columns)]
    for one in found[: limit - 1]:
        text = {
            "by kind": clean(one.group), "op": clean(one.op), "bytes": words.size(one.num_bytes),
            "×": str(one.number), "waited": words.duration(one.wait_ns),
            "skew": words.duration(one.skew_ns), "busbw": words.busbw(one.busbw_gbps),
        }  # fmt: skip
        style = {"op": "strong", "by kind": "dim"}
        parts = (Segment(c.cell(text[c.title]) + "  ", style.get(c.title, "")) for c in columns)
        lines.append(line("  ", *parts))
    if len(found) > limit - 1:
        more = f"  … {words.plural(len(found) - limit + 1, 'more kind')} that waited less"
        lines[-1] = line(Segment(more, "faint"))
    return lines


def charts(rows: Sequence[CollectiveRow], cells: int, height: int) -> list[Line]:
    """Bus bandwidth by message size and lateness per rank, side by side, each op in its style."""
    if height < _LEAST_ROWS + 1:
        return []
    size = (cells - 4) // 2
    panels = [
        ("bus bandwidth by message size", "", _bandwidth(rows, size, height - 2)),
        ("how late each rank came", "", _lateness(rows, size, height - 2)),
    ]
    panels = [panel for panel in panels if panel[2]]
    if not panels:
        return []
    title, *drawn = side_by_side(panels, size, height - 2)
    return [title, _legend(rows), *drawn]


def _styles(rows: Sequence[CollectiveRow]) -> dict[str, str]:
    """op -> style, the most frequent first."""
    counted = Counter(row.op for row in rows)
    ordered = sorted(counted, key=lambda op: (-counted[op], op))
    return {op: _STYLES[at] if at < len(_STYLES) else "dim" for at, op in enumerate(ordered)}


def _legend(rows: Sequence[CollectiveRow]) -> Line:
    return line("  ", *(Segment(f"● {clean(op)}  ", style) for op, style in _styles(rows).items()))


def _by_op(
    points: dict[str, list[tuple[float, float]]], rows: Sequence[CollectiveRow]
) -> list[Series]:
    return [
        Series(tuple(points[op]), style, DOT) for op, style in _styles(rows).items() if points[op]
    ]


def _bandwidth(rows: Sequence[CollectiveRow], cells: int, height: int) -> list[Line]:
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row.busbw_gbps and row.bytes:
            points[row.op].append((row.bytes, row.busbw_gbps))
    return plot(_by_op(points, rows), cells, height, _SIZES, _RATES)


def _lateness(rows: Sequence[CollectiveRow], cells: int, height: int) -> list[Line]:
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        times = [a.came_ns for a in row.arrivals if a.came_ns is not None]
        for arrival in row.arrivals:
            if arrival.came_ns is not None:
                points[row.op].append((arrival.rank, arrival.came_ns - min(times)))
    return plot(_by_op(points, rows), cells, height, _RANKS, _TIMES)


_SIZES: Final = Scale(words.size, log=True)
_RATES: Final = Scale(words.busbw, log=True)
_RANKS: Final = Scale(WHOLE, whole=True, unit="rank")
_TIMES: Final = Scale(words.duration, low=0.0)
