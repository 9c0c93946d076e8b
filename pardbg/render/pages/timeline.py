"""The timeline page: lanes of each rank on one time axis that ends at the cursor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.answers.timeline import LaneSpan
from pardbg.analysis.pipeline.dependencies import parse
from pardbg.render.draw.axis import Axis, ruler
from pardbg.render.draw.cells import Line, Picture, Segment, clean, fit, left, line
from pardbg.render.frame.empty import empty
from pardbg.render.pages.pipeline.schedule import KIND_WORD
from pardbg.render.pages.pipeline.schedule import label as short

GUTTER = 15
SHORT = {
    "all_reduce": "AR", "all_gather": "AG", "reduce_scatter": "RS", "all_to_all": "A2A",
    "broadcast": "BC", "barrier": "BA", "gather": "GA", "scatter": "SC", "reduce": "RE",
}  # fmt: skip
"""What stands in a box that is too narrow for the op's name."""
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
                     "− shows more time, ←→ move, a comma steps back, f follows.")  # fmt: skip
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
    across, cell = words.duration(axis.span_ns), words.duration(axis.ns_per_cell)
    title = f"  {across} across · {cell} a column"
    behind = snapshot.t_ns - window.t1_ns
    if behind > 0:
        title += f" · nothing was recorded in the last {words.duration(behind)}"
    head = (
        line(Segment(title, "dim")),
        line(left("", GUTTER), *ruler(axis, None, origin).line()),
    )
    return Picture(head, tuple(body), (_legend(lanes, cells),), focus=focus, rows=tuple(places))


def _row(
    rank: int, name: str, spans: Sequence[LaneSpan], axis: Axis, first: bool, chosen: bool
) -> Line:
    mark = Segment(("▸" if first else "│") if chosen else " ", "accent")
    who = Segment(left(f"r{rank}" if first else "", 5), "strong" if chosen else "")
    gutter = line(mark, who, Segment(left(clean(name), 8), "dim"), " ")
    return line(fit(gutter, GUTTER), *lane(spans, axis))


def lane(spans: Sequence[LaneSpan], axis: Axis) -> Line:
    """One lane: a box per span, labelled where the label fits.

    Boxes come in order and never overlap, so runs are made at once instead of cell by cell:
    a full screen holds thousands of them.
    """
    runs: list[Segment] = []
    painted = 0
    last = ""
    odd = False
    cells, t0, scale = axis.cells, axis.t0_ns, axis.cells / axis.span_ns
    for span in spans:
        start = round((span.t0_ns - t0) * scale)
        if start < painted:
            start = painted
        end = round((span.t1_ns - t0) * scale)
        if end <= start:
            end = start + 1
        if end > cells:
            end = cells
            if end <= start:
                continue
        touching = start == painted and painted > 0
        if start > painted:
            runs.append(Segment(" " * (start - painted)))
        odd = touching and span.style == last and not odd
        runs += _box(span, end - start, odd)
        painted, last = end, span.style
    if painted < cells:
        runs.append(Segment(" " * (cells - painted)))
    return tuple(runs)


@lru_cache(maxsize=8192)
def _shown(label: str, style: str, size: int) -> str:
    """What stands in a box of ``size`` cells."""
    root = style.partition(".")[0]
    if root in HATCHED:
        return "░" * size
    action = parse(label) if root == "action" else None
    if action is not None:
        label = short(action.stage, action.kind, action.microbatch, size, False)
    elif root == "comm" and len(label) > size and label in SHORT:
        label = SHORT[label] if len(SHORT[label]) <= size else ""
    elif len(label) > size:
        first = clean(label).partition(" ")[0]
        label = first if len(first) <= size else clean(label)[:size] if size >= 4 else ""
    else:
        label = clean(label)
    return left(label, size)


def _box(span: LaneSpan, size: int, odd: bool) -> tuple[Segment, ...]:
    style = span.style
    text = _shown(span.label, style, size)
    if style.startswith("action") and style.count(".") == 1:
        return (Segment(text, style + (".odd" if odd else ".even")),)
    if odd and text[0] == " ":
        return (
            (Segment("▏", style + "+edge"), Segment(text[1:], style))
            if size > 1
            else (Segment("▏", style + "+edge"),)
        )
    return (Segment(text, style),)


def _legend(lanes: Mapping[int, Mapping[str, tuple[LaneSpan, ...]]], cells: int) -> Line:
    styles: dict[str, None] = {}
    for rank in list(lanes.values())[:4]:
        for spans in rank.values():
            for span in spans[:200]:
                styles.setdefault(span.style)
    parts: list[Segment] = [Segment("  ")]
    used = 2
    for style in sorted(styles):
        root, _, name = style.partition(".")
        sample = "░░" if root in HATCHED else "  "
        word = KIND_WORD.get(name, name or root) if root == "action" else name or root
        word = f"{SHORT[word]} {word}" if root == "comm" and word in SHORT else word
        text = f" {clean(word).replace('_', ' ')}   "
        if used + len(text) + 2 > cells:
            break
        parts += [Segment(sample, style), Segment(text, "dim")]
        used += len(text) + 2
    return tuple(parts)
