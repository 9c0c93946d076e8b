"""When the debugger held ranks: such time says nothing about the program."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.intervals import Interval, clip, total, union

LAST: Final = 1024
"""Holds per rank that are looked at for live figures."""


def held_ns(view: View, ranks: Iterable[int], t0_ns: int, t1_ns: int) -> int:
    """How long ranks were held at gates within t0..t1, added up."""
    held = 0
    for rank in ranks:
        process = view.ranks.get(rank)
        if process is None:
            continue
        table, visible = view.rows(process, "held")
        lo = int(table.when[:visible].searchsorted(t0_ns))  # ``when`` is the end
        begins, ends = (table.col(c)[lo:visible].tolist() for c in ("t0_ns", "t1_ns"))
        held += total(clip(zip(begins, ends, strict=True), t0_ns, t1_ns))
    return held


def was_held(view: View, t0_ns: int, t1_ns: int) -> bool:
    """Any rank was held within t0..t1: the others may then have waited for it."""
    spans = _recent(view)
    at = bisect_left(spans, t0_ns, key=lambda span: span[1])
    return at < len(spans) and spans[at][0] < t1_ns


def _recent(view: View) -> list[Interval]:
    """The last holds of all ranks, merged, by time."""
    found = view.local.get("holds")
    if found is None:
        spans: list[Interval] = []
        for process in view.ranks.values():
            table, visible = view.rows(process, "held")
            tail = slice(max(0, visible - LAST), visible)
            columns = (table.col(c)[tail].tolist() for c in ("t0_ns", "t1_ns"))
            spans += zip(*columns, strict=True)
        found = view.local["holds"] = union(spans)
    result: list[Interval] = found
    return result


def last_hold_end(view: View) -> int:
    """When the debugger let a rank go for the last time; 0: it held none lately."""
    spans = _recent(view)
    return spans[-1][1] if spans else 0
