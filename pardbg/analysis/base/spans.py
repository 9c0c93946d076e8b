"""Spans of the program around a time, and a table's records as intervals."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.intervals import Interval, clip, union
from pardbg.analysis.base.rank_columns import MANY
from pardbg.analysis.base.times import times
from pardbg.store.process import Process
from pardbg_agent import wire

_P2P: Final = int(wire.Flag.P2P)
_FIELDS: Final = ("name_id", "t0_ns", "t1_ns", "flags")
_OPEN: Final = 16
"""Number of newest span begins searched for spans that have not ended."""
_DEPTH: Final = 16
"""Maximum nesting depth of spans that are found."""


class Span(NamedTuple):
    """A span that the user marked (``pardbg_agent.span``)."""

    t0_ns: int
    t1_ns: int | None
    """End of the span; None: it has not ended at the cursor."""
    name: str
    part: int
    parts: int
    """Number of the part among ``parts``, from 1; 0: not given."""
    chunk: int
    """Number of the chunk, from 0; -1: not given."""

    @property
    def text(self) -> str:
        """Return the span in words, such as ``reduce-scatter 2/6 c1``."""
        place = f" {self.part}/{self.parts}" if self.parts > 0 else ""
        return f"{self.name}{place}{f' c{self.chunk}' if self.chunk >= 0 else ''}"


class Record(NamedTuple):
    """A row of a table: its name, time and flags."""

    name_id: int
    t0_ns: int
    t1_ns: int
    flags: int


def enclosing(view: View, rank: int, times: Sequence[int]) -> list[Span | None]:
    """Return the innermost span of a rank around each of the times, given in any order."""
    process = view.ranks.get(rank)
    if process is None or not times:
        return [None] * len(times)
    spans = sorted(_spans(view, process, min(times)), key=lambda span: span.t0_ns)
    if not spans:
        return [None] * len(times)
    begins = [span.t0_ns for span in spans]
    return [_innermost(spans, begins, t) for t in times]


def open_span(view: View, rank: int) -> Span | None:
    """Return the innermost span that the rank is in at the cursor; None: in none."""
    return enclosing(view, rank, [view.t_ns])[0]


def _innermost(spans: Sequence[Span], begins: Sequence[int], t_ns: int) -> Span | None:
    at = bisect_right(begins, t_ns)
    for span in reversed(spans[max(0, at - _DEPTH) : at]):
        if span.t1_ns is None or span.t1_ns > t_ns:
            return span
    return None


def _spans(view: View, process: Process, since_ns: int) -> list[Span]:
    """Return the spans that had not ended before ``since_ns``."""
    table, visible = view.rows(process, "span")
    if not visible and not view.visible(process, "span_begin"):
        return []  # most programs have none, and this is asked for each rank and frame
    lo = int(table.when[:visible].searchsorted(since_ns, side="left"))
    ended = _read(view, process, "span", lo, True)
    begun = _read(view, process, "span_begin", -_OPEN, False)
    if not begun:
        return ended
    # Rows are sorted by their ends, so all spans that began since then are behind this row.
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
    """Return a table's records in a window that ended at the cursor, of these names or any."""
    found = _touching(view, process, name, window)
    if names is None:
        return found
    return [record for record in found if process.name(record.name_id) in names]


def _touching(view: View, process: Process, name: str, window: Interval) -> list[Record]:
    known = _known(view)
    if (key := (process.proc, name, window)) not in known:
        table, visible = view.rows(process, name)
        when = table.when[:visible]
        part = slice(
            int(when.searchsorted(window[0] - table.longest_ns)),
            int(when.searchsorted(window[1] + table.longest_ns, side="right")),
        )
        t0, t1 = table.col("t0_ns")[part], table.col("t1_ns")[part]
        rows = np.flatnonzero((t0 < window[1]) & (t1 > window[0]) & (t1 <= view.t_ns)) + part.start
        columns = (table.col(c)[rows].tolist() for c in _FIELDS)
        known[key] = list(map(Record, *columns))
    return known[key]


def _known(view: View) -> dict[tuple[str, str, Interval], list[Record]]:
    found: dict[tuple[str, str, Interval], list[Record]] = view.local.setdefault("records", {})
    return found


def read_ahead(view: View, names: Iterable[str], windows: Mapping[int, Interval]) -> None:
    """Read the records `records` will need, a window per rank: faster for all ranks at once."""
    if len(windows) < MANY:
        return
    known = _known(view)
    spans = np.array([windows.get(rank, (0, 0)) for rank in view.ranks], np.int64).T
    asked = np.array([rank in windows for rank in view.ranks])
    procs = [process.proc for process in view.ranks.values()]
    for name in names:
        seen, joined = view.all(name), view.joined(name)
        longest = np.array([table.longest_ns for table in joined.tables], np.int64)
        begins = np.where(asked, seen.before(spans[0] - longest), 0)
        ends = np.where(asked, seen.before(spans[1] + longest, "right"), 0)
        found = seen.take(_FIELDS, begins, ends)
        owners, t0, t1 = found["who"], found["t0_ns"], found["t1_ns"]
        good = (t0 < spans[1][owners]) & (t1 > spans[0][owners]) & (t1 <= view.t_ns)
        rows = list(map(Record, *(found[field][good].tolist() for field in _FIELDS)))
        at = owners[good].searchsorted(np.arange(len(procs) + 1)).tolist()
        for place in np.flatnonzero(asked).tolist():
            window = int(spans[0][place]), int(spans[1][place])
            known[procs[place], name, window] = rows[at[place] : at[place + 1]]


def stretches(
    view: View, process: Process, name: str, window: Interval, names: Collection[str] | None = None
) -> list[Interval]:
    """Return the merged intervals of records with these names within the window."""
    found = records(view, process, name, window, names)
    return union(clip(((record.t0_ns, record.t1_ns) for record in found), *window))


def p2p_waits(view: View, rank: int, window: Interval) -> list[Interval]:
    """Return merged stretches around the window in which the host waited for point-to-point ops;
    empty where times are the device's, about which the host's waits say nothing."""
    process = None if times(view) == "device" else view.ranks.get(rank)
    waits = [] if process is None else records(view, process, "wait", window)
    return union((record.t0_ns, record.t1_ns) for record in waits if record.flags & _P2P)
