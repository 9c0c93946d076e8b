"""Facts about the action under the cursor, in a fixed number of lines."""

from __future__ import annotations

from pardbg.analysis.pipeline.critical_path import CriticalPath
from pardbg.analysis.pipeline.ticks.cell import CellDetail, Transfer
from pardbg.analysis.pipeline.values import ActionSpan, PipelineStep
from pardbg.render.draw.bars import rule
from pardbg.render.draw.cells import Line, Segment, fit, line, overlay, plain
from pardbg.render.pages.pipeline.schedule import KIND_WORD
from pardbg.words import duration, size

LINES = 4


def moved_text(transfers: tuple[Transfer, ...], arrow: str) -> str:
    """Return ``32.8 kB ◂ r0 (48 µs)``: bytes, the other ranks, and the duration."""
    if not transfers:
        return "nothing"
    total = sum(moved.bytes for moved in transfers)
    peers = ",".join(f"r{rank}" for rank in sorted({moved.peer for moved in transfers}))
    took = max((moved.ns or 0 for moved in transfers), default=0)
    tail = f" ({duration(took)})" if took else ""
    return f"{size(total)} {arrow} {peers}{tail}"


def lit(row: Line, begin: int, end: int, kind: str) -> Line:
    """Return a line of the schedule with the cells of the selected action highlighted."""
    text = plain(row)[begin:end]
    return overlay(row, begin, text, f"action.{kind}.now") if text else row


def strip_of(
    step: PipelineStep, span: ActionSpan, cell: CellDetail | None, path: CriticalPath | None,
    cells: int,
) -> list[Line]:  # fmt: skip
    """Draw the action's times compared to the median, the ranks it waited for and that waited for
    it, its tensors, and whether it is on the critical path."""
    note = f"step {step.step}, rank {span.rank}, {KIND_WORD.get(span.kind, span.kind)}"
    note += f" of microbatch {span.microbatch}" if span.microbatch >= 0 else ""
    known = cell is not None and (cell.rank, cell.action) == (span.rank, span.text)
    rows = [_times(step, span, cell if known else None)]
    rows += [_waits(cell), _tensors(cell, path)] if cell is not None and known else [(), ()]
    head = line(" ", rule(span.text, cells - 2, note))
    return [head, *(fit(line("  ", row), cells) for row in rows)]


def _times(step: PipelineStep, span: ActionSpan, cell: CellDetail | None) -> Line:
    begin = duration(span.t0_ns - step.t0_ns)
    if span.t1_ns is None:
        return line(Segment("began at ", "dim"), begin, Segment(", has not ended", "accent"))
    parts = [
        Segment(duration(span.t1_ns - span.t0_ns), "strong"),
        Segment(" from ", "dim"),
        Segment(begin),
        Segment(" to ", "dim"),
        Segment(duration(span.t1_ns - step.t0_ns)),
    ]
    if cell is not None and cell.median_ns is not None:
        parts += [Segment(f"   median of {cell.num_like_it} like it ", "dim"),
                  Segment(duration(cell.median_ns))]  # fmt: skip
    return tuple(parts)


def _waits(cell: CellDetail) -> Line:
    parts = [Segment("waited ", "dim"), Segment(duration(cell.waited_ns), "strong")]
    if cell.needs:
        parts += [Segment(" for ", "dim"), Segment(cell.needs)]
    waiters = ", ".join(f"r{rank} {text} {duration(ns)}" for rank, text, ns in cell.waiters)
    parts += [Segment("   waited for by ", "dim"), Segment(waiters or "nobody",
              "warn" if waiters else "")]  # fmt: skip
    return tuple(parts)


def _tensors(cell: CellDetail, path: CriticalPath | None) -> Line:
    parts = [Segment("in ", "dim"), Segment(moved_text(cell.received, "◂")),
             Segment("   out ", "dim"), Segment(moved_text(cell.sent, "▸"))]  # fmt: skip
    if path is not None:
        on = (cell.rank, cell.action) in {(link.rank, link.action) for link in path.links}
        parts += [Segment("   on the critical path ", "dim"), Segment("yes" if on else "no",
                  "accent" if on else "")]  # fmt: skip
    return tuple(parts)
