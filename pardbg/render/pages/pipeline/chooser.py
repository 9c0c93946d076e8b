"""What stands under the pipeline page's title: which of several pipelines is shown, and what a run
without a schedule lacks."""

from __future__ import annotations

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.pipeline.mesh import PipelineName
from pardbg.analysis.pipeline.observed import PipelineView
from pardbg.render.draw.cells import Line, Segment, crop, line, line_width

_KEYS = " [ ]"
_LACKS = {
    "chain": (
        "No schedule: these ranks hand the batch on by send and receive of their own.",
        "No schedule: these ranks hand the batch on by send and receive of their own. F and B"
        " are their forward and backward as seen; there is no plan to lay beside them.",
    ),
    "observed": (
        "No plan: the program shows no schedule object. Actions are as seen.",
        "No plan: the program shows no schedule object. Actions are as seen; what they imply and"
        " what comes next is not known.",
    ),
}


def lacks(view: PipelineView, cells: int) -> tuple[Line, ...]:
    """One line that says what is not there, where the rows come without a plan."""
    short, long = _LACKS.get(view.source, ("", ""))
    text = long if len(long) + 2 <= cells else short
    return (crop(line(Segment(f" {text}", "dim")), cells),) if text else ()


def choices(snapshot: Snapshot, cells: int) -> tuple[Line, ...]:
    """The run's pipelines with their bubbles, as many as fit around the one that is shown; the
    worst of all is named."""
    names, view = snapshot.pipelines, snapshot.pipeline
    if len(names) < 2 or view is None:
        return ()
    tail = line(*_worst(names), Segment(_KEYS, "accent"), Segment(" another ", "dim"))
    room = cells - line_width(tail) - 2
    shown = min(view.index, len(names) - 1)
    first, last = shown, shown + 1
    while last - first < len(names):
        wider = (first, last + 1) if last < len(names) else (first - 1, last)
        if first > 0 and last < len(names) and (last - shown) > (shown - first):
            wider = (first - 1, last)
        if line_width(_row(names, shown, *wider)) > room:
            break
        first, last = wider
    row = _row(names, shown, first, last)
    gap = max(1, cells - line_width(row) - line_width(tail))
    return (crop(line(*row, " " * gap, *tail), cells),)


def _row(names: tuple[PipelineName, ...], shown: int, first: int, last: int) -> Line:
    parts: list[Segment | str] = [Segment(f" {len(names)} pipelines ", "dim")]
    parts += [Segment(" …", "faint")] if first > 0 else []
    for index in range(first, last):
        here = index == shown
        parts += [
            Segment(" ▸" if here else "  ", "accent"),
            Segment(names[index].label, "strong" if here else "dim"),
            Segment(f" {words.percent(names[index].bubble_fraction)}", "warn" if here else "dim"),
        ]
    parts += [Segment("  …", "faint")] if last < len(names) else []
    return line(*parts)


def _worst(names: tuple[PipelineName, ...]) -> list[Segment]:
    known = [name for name in names if name.bubble_fraction is not None]
    if not known:
        return []
    worst = max(known, key=lambda name: name.bubble_fraction or 0.0)
    return [Segment("worst ", "dim"), Segment(worst.label)]
