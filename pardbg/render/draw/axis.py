"""The time axis under schedules and timelines, with breaks for long times without activity.

A rank that is held for seconds would squeeze a step of milliseconds into nothing. So intervals in
which no rank computes for far longer than an action takes are cut to a few cells, drawn as a break,
and the ruler's times jump over them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from pardbg import words
from pardbg.render.draw.cells import Row

BREAK, BREAK_CELLS = "╎", 3
_LONG = 4.0
"""A gap this many times the longest action is cut short."""


@dataclass(frozen=True)
class Axis:
    """Times from ``t0_ns`` on ``cells`` columns; ``breaks`` are the intervals cut short."""

    t0_ns: int
    span_ns: float
    """Time that the columns show, ns, without the time removed by breaks."""
    cells: int
    breaks: tuple[tuple[int, int], ...] = ()

    @property
    def ns_per_cell(self) -> float:
        return self.span_ns / max(1, self.cells)

    @cached_property
    def _cuts(self) -> tuple[list[int], list[float]]:
        """Return (begins of the breaks, time removed before each of them)."""
        removed, begins, sums = 0.0, [], []
        kept = self.ns_per_cell * BREAK_CELLS
        for begin, end in self.breaks:
            begins.append(begin)
            sums.append(removed)
            removed += max(0.0, end - begin - kept)
        return begins, sums

    def x(self, t_ns: float) -> int:
        """Return the column of a time."""
        if self.breaks:
            t_ns = self._shortened(t_ns)
        return round((t_ns - self.t0_ns) * self.cells / self.span_ns)

    def _shortened(self, t_ns: float) -> float:
        begins, sums = self._cuts
        at = bisect_right(begins, t_ns) - 1
        if at < 0:
            return t_ns
        begin, end = self.breaks[at]
        kept = min(self.ns_per_cell * BREAK_CELLS, end - begin)
        if t_ns >= end:
            return t_ns - sums[at] - (end - begin - kept)
        return begin - sums[at] + (t_ns - begin) * kept / max(1, end - begin)


def gaps(spans: Iterable[tuple[int, int]], end_ns: int) -> tuple[tuple[int, int], ...]:
    """Return the intervals up to ``end_ns`` without a span, if long compared to the longest
    span."""
    ordered = sorted(spans)
    if not ordered:
        return ()
    limit = _LONG * max(end - begin for begin, end in ordered)
    found: list[tuple[int, int]] = []
    reached = ordered[0][0]
    for begin, end in [*ordered, (end_ns, end_ns)]:
        if begin - reached > limit:
            found.append((reached, begin))
        reached = max(reached, end)
    return tuple(found)


def nice_step(ns: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten, ns."""
    scale = 1.0
    while scale * 10 <= ns:
        scale *= 10
    return next((scale * by for by in (1, 2, 5, 10) if scale * by >= ns), scale * 10)


def ruler(axis: Axis, cursor: int | None = None, origin_ns: int | None = None) -> Row:
    """Return the times along the axis, counted from ``origin_ns`` (by default the axis' begin)."""
    row = Row(axis.cells)
    origin = axis.t0_ns if origin_ns is None else origin_ns
    step = nice_step(axis.ns_per_cell * 14)
    ticks = _ticks(axis, origin, step)
    for tick in ticks:
        at = axis.x(origin + tick)
        text = words.offset(tick, step, ticks[-1]) if tick else "0"
        hidden = cursor is not None and at <= cursor <= at + len(text) + 1
        if at + len(text) + 1 <= axis.cells and not hidden and row.blank(max(at - 1, 0)):
            row.put(at, "╷" + text, "dim")
    for begin, end in axis.breaks:
        text = f"⋯{words.duration(end - begin)}"
        at = axis.x(begin)
        if cursor is not None and at < cursor <= at + len(text):
            at = max(0, cursor - len(text))
        room = all(row.blank(x) for x in range(at, min(at + len(text) + 1, axis.cells)))
        if room and at + len(text) < axis.cells:
            row.put(at, text, "faint")
    if cursor is not None:
        row.put(min(cursor, axis.cells - 1), "▾", "cursor")
    return row


def _ticks(axis: Axis, origin: int, step: float) -> Sequence[float]:
    """Return the multiples of ``step`` on the axis outside breaks."""
    first = -(-(axis.t0_ns - origin) // step)
    ticks: list[float] = []
    at = origin + first * step
    while axis.x(at) < axis.cells and len(ticks) < 200:
        inside = next((end for begin, end in axis.breaks if begin < at < end), None)
        if inside is None:
            ticks.append(at - origin)
            at += step
        else:
            at = origin + -(-(inside - origin) // step) * step
    return ticks


def mark_breaks(row: Row, axis: Axis) -> None:
    """Draw a break across a row, over the row's contents."""
    for begin, end in axis.breaks:
        row.fill(axis.x(begin), axis.x(end), BREAK, "gap")
