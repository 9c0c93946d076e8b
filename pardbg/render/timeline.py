"""The timeline page: lanes of each rank on one time axis that ends at the cursor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pardbg.analysis.model import LaneSpan, Snapshot
from pardbg.render import words
from pardbg.render.cells import Line, Picture, Row, Run, clean, fit, left, line
from pardbg.render.empty import empty
from pardbg.render.schedule import KIND_WORD, Axis, ruler

GUTTER = 15
HATCHED = ("wait",)
"""Style roots drawn with a character instead of a fill."""


@dataclass(frozen=True, slots=True)
class Window:
    t0_ns: int
    t1_ns: int


def columns(cells: int) -> int:
    """Cells of the drawing itself, at a terminal width."""
    return max(10, cells - GUTTER - 1)


def timeline(
    snapshot: Snapshot,
    lanes: Mapping[int, Mapping[str, tuple[LaneSpan, ...]]],
    window: Window,
    cells: int,
    rows: int,
    chosen: int | None = None,
) -> Picture:
    """The page at ``cells`` x ``rows``."""
    if not any(span for rank in lanes.values() for span in rank.values()):
        if not lanes and not snapshot.ranks:
            return empty(cells, rows, "Nothing to draw yet.", "No rank has reported.")
        return empty(cells, rows, "Nothing ran in this window.",
                     "− shows more time, ←→ move, f follows the live run.")  # fmt: skip
    axis = Axis(window.t0_ns, max(1, window.t1_ns - window.t0_ns), columns(cells))
    body: list[Line] = []
    places: list[int] = []
    focus = None
    spaced = sum(len(rank) + 1 for rank in lanes.values()) <= rows - 4
    for rank in sorted(lanes):
        shown = [(name, spans) for name, spans in lanes[rank].items() if spans]
        if rank == chosen:
            focus = len(body)
        for index, (name, spans) in enumerate(shown or [("", ())]):
            body.append(_row(rank, name, spans, axis, index == 0, rank == chosen))
            places.append(rank)
        if spaced:
            body.append(())
            places.append(rank)
    origin = snapshot.t_begin_ns
    title = (
        f"  {words.duration(axis.span_ns)} across · {words.duration(axis.ns_per_cell)} a column"
    )
    head = (
        line(Run(title, "dim")),
        line(left("", GUTTER), *ruler(axis, None, origin).line()),
    )
    return Picture(head, tuple(body), (_legend(lanes, cells),), focus=focus, rows=tuple(places))


def _row(
    rank: int, name: str, spans: Sequence[LaneSpan], axis: Axis, first: bool, chosen: bool
) -> Line:
    mark = Run(("▸" if first else "│") if chosen else " ", "accent")
    who = Run(left(f"r{rank}" if first else "", 5), "strong" if chosen else "")
    gutter = line(mark, who, Run(left(clean(name), 8), "dim"), " ")
    return line(fit(gutter, GUTTER), *lane(spans, axis).line())


def lane(spans: Sequence[LaneSpan], axis: Axis) -> Row:
    """One lane: a box per span, labelled where the label fits."""
    row = Row(axis.cells)
    painted = 0
    last = ""
    odd = False
    cells, t0, scale = axis.cells, axis.t0_ns, axis.cells / axis.span_ns
    for span in spans:
        start = max(round((span.t0_ns - t0) * scale), painted)
        end = min(max(round((span.t1_ns - t0) * scale), start + 1), cells)
        if end <= start:
            continue
        touching = start == painted and painted > 0
        odd = touching and span.style == last and not odd
        _paint(row, span, start, end, odd)
        painted, last = end, span.style
    return row


def _paint(row: Row, span: LaneSpan, start: int, end: int, odd: bool) -> None:
    style = span.style
    root = style.partition(".")[0]
    size = end - start
    if root in HATCHED:
        row.fill(start, end, "░", style)
        return
    if root == "action":
        style = f"{style}.{'odd' if odd else 'even'}" if style.count(".") == 1 else style
    row.fill(start, end, " ", style)
    label = span.label if span.label.isascii() and span.label.isprintable() else clean(span.label)
    if len(label) > size:
        label = label[:size] if size >= 4 or root == "action" else ""
    if label:
        row.put(start, label, style)
    if odd and root != "action" and size >= 1 and not label:
        row.put(start, "▏", style + "+edge")


def _legend(lanes: Mapping[int, Mapping[str, tuple[LaneSpan, ...]]], cells: int) -> Line:
    styles: dict[str, None] = {}
    for rank in list(lanes.values())[:4]:
        for spans in rank.values():
            for span in spans[:200]:
                styles.setdefault(span.style)
    parts: list[Run] = [Run("  ")]
    used = 2
    for style in sorted(styles):
        root, _, name = style.partition(".")
        sample = "░░" if root in HATCHED else "  "
        word = KIND_WORD.get(name, name or root) if root == "action" else name or root
        text = f" {clean(word).replace('_', ' ')}   "
        if used + len(text) + 2 > cells:
            break
        parts += [Run(sample, style), Run(text, "dim")]
        used += len(text) + 2
    return tuple(parts)
