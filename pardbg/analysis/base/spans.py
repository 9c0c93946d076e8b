"""What part of its program a rank was in, as the program's own spans say it; records of a table as
stretches of time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import numpy as np

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.base.intervals import Interval, clip, union
from pardbg.store.process import Process
from pardbg_agent import wire

_OPEN: Final = 16
"""Number of newest span begins searched for spans that have not ended."""
_DEPTH: Final = 16
"""Maximum nesting depth of spans that are found."""


class Span(NamedTuple):
    """A user's span (``pardbg_agent.span``)."""

    t0_ns: int
    t1_ns: int | None
    """None: has not ended at the cursor."""
    name: str
    part: int
    parts: int
    """``part`` of ``parts``, from 1; 0: the program did not say."""
    chunk: int
    """From 0; -1: the program did not say."""

    @property
    def text(self) -> str:
        """Return text such as ``reduce-scatter 2/6 c1``."""
        place = f" {self.part}/{self.parts}" if self.parts > 0 else ""
        return f"{self.name}{place}{f' c{self.chunk}' if self.chunk >= 0 else ''}"


class Record(NamedTuple):
    """A row of a table as a stretch of time."""

    name_id: int
    t0_ns: int
    t1_ns: int
    flags: int


def enclosing(view: View, rank: int, times: Sequence[int]) -> list[Span | None]:
    """Return the innermost span around each time, on one rank. Times in any order."""
    process = view.ranks.get(rank)
    if process is None or not times:
        return [None] * len(times)
    spans = sorted(_spans(view, process, min(times)), key=lambda span: span.t0_ns)
    if not spans:
        return [None] * len(times)
    begins = [span.t0_ns for span in spans]
    return [_innermost(spans, begins, t) for t in times]


def open_span(view: View, rank: int) -> Span | None:
    """Return the innermost span that the rank is in at the cursor."""
    return enclosing(view, rank, [view.t_ns])[0]


def _innermost(spans: Sequence[Span], begins: Sequence[int], t_ns: int) -> Span | None:
    at = bisect_right(begins, t_ns)
    for span in reversed(spans[max(0, at - _DEPTH) : at]):
        if span.t1_ns is None or span.t1_ns > t_ns:
            return span
    return None


def _spans(view: View, process: Process, since_ns: int) -> list[Span]:
    """Spans that had not ended before a time."""
    table, visible = view.rows(process, "span")
    if not visible and not view.visible(process, "span_begin"):
        return []  # most programs have none, and this is asked for each rank and frame
    lo = int(table.when[:visible].searchsorted(since_ns, side="left"))
    ended = _read(view, process, "span", lo, True)
    begun = _read(view, process, "span_begin", -_OPEN, False)
    if not begun:
        return ended
    # Ends are sorted by their time, so all of those that began since then are behind this row.
    after = int(table.when[:visible].searchsorted(begun[0].t0_ns, side="left"))
    closed = {(s.t0_ns, s.name) for s in _read(view, process, "span", after, True)}
    return ended + [span for span in begun if (span.t0_ns, span.name) not in closed]


def _read(view: View, process: Process, name: str, lo: int, ended: bool) -> list[Span]:
    table, visible = view.rows(process, name)
    part = slice(max(0, visible + lo) if lo < 0 else lo, visible)
    columns = ("t0_ns", "t1_ns", "name_id", "a", "b", "microbatch")
    rows = zip(*(table.col(c)[part].tolist() for c in columns), strict=True)
    return [
        Span(t0, t1 if ended else None, process.name(name_id), a, b, mb)
        for t0, t1, name_id, a, b, mb in rows
    ]


def records(
    view: View, process: Process, name: str, window: Interval, names: Collection[str] | None = None
) -> list[Record]:
    """Return a table's records in a window that had ended at the cursor; of these names, or all."""
    found = _touching(view, process, name, window)
    if names is None:
        return found
    return [one for one in found if process.name(one.name_id) in names]


@per_view
def _touching(view: View, process: Process, name: str, window: Interval) -> list[Record]:
    table, visible = view.rows(process, name)
    when = table.when[:visible]
    part = slice(
        int(when.searchsorted(window[0] - table.longest_ns)),
        int(when.searchsorted(window[1] + table.longest_ns, side="right")),
    )
    t0, t1 = table.col("t0_ns")[part], table.col("t1_ns")[part]
    rows = np.flatnonzero((t0 < window[1]) & (t1 > window[0]) & (t1 <= view.t_ns)) + part.start
    columns = (table.col(c)[rows].tolist() for c in ("name_id", "t0_ns", "t1_ns", "flags"))
    return list(map(Record, *columns))


def stretches(
    view: View, process: Process, name: str, window: Interval, names: Collection[str] | None = None
) -> list[Interval]:
    """Return when, within the window, such records lay, merged and in order."""
    found = records(view, process, name, window, names)
    return union(clip(((one.t0_ns, one.t1_ns) for one in found), *window))


def p2p_waits(view: View, rank: int, window: Interval) -> list[Interval]:
    """Return stretches around the window in which the host waited for p2p ops, merged."""
    process = view.ranks.get(rank)
    waits = [] if process is None else records(view, process, "wait", window)
    return union((one.t0_ns, one.t1_ns) for one in waits if one.flags & wire.Flag.P2P)
