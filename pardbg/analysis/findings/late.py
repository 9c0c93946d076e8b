"""Waits that are over: ranks that came late, in the past tense."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pardbg.analysis.base.asof import View, per_store
from pardbg.analysis.base.holds import was_held
from pardbg.analysis.base.matched import CollectiveRow
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.findings.hangs import patience_ns
from pardbg.analysis.findings.reasons import UNKNOWN, Reason, past, reason
from pardbg.analysis.findings.shared import Finding, at_row
from pardbg.words import duration

MAX_RANKS: Final = 8
LATE_NS: Final = 4_000_000_000
"""On a host with more processes than cores a rank may stand aside for seconds."""


@per_store(lambda view, rank, came_ns, late_ns: (view.ranks[rank].proc, came_ns))
def _why(view: View, rank: int, came_ns: int, late_ns: int) -> Reason:
    """What was known of the rank towards the end of the wait. It is past: looked up once."""
    return reason(View(view.store, came_ns - late_ns // 4), rank)


def late(view: View) -> Iterable[Finding]:
    """Per rank, the longest wait for it among the last collectives, if it was worth a line."""
    least = max(LATE_NS, patience_ns(view))
    worst: dict[int, CollectiveRow] = {}
    for row in collectives(view):
        rank, skew = row.last_rank, row.skew_ns
        if row.verdict != "matched" or rank is None or skew is None or skew < least:
            continue
        arrived = [a.issued_ns for a in row.arrivals if a.issued_ns is not None]
        if was_held(view, min(arrived), max(arrived)):
            continue
        if rank not in worst or skew > (worst[rank].skew_ns or 0):
            worst[rank] = row
    ordered = sorted(worst.items(), key=lambda item: -(item[1].skew_ns or 0))
    for rank, row in ordered[:MAX_RANKS]:
        others = tuple(a.rank for a in row.arrivals if a.rank != rank)
        came = max(a.issued_ns for a in row.arrivals if a.issued_ns is not None)
        why = _why(view, rank, came, row.skew_ns or 0)
        meanwhile = "" if why.text == UNKNOWN else f" Meanwhile it {past(why.text)}."
        yield Finding(
            kind="late-rank",
            severity="info",
            ranks=others,
            culprits=(rank,),
            group=row.group,
            seq=row.seq,
            t_ns=came,
            first_ns=came - (row.skew_ns or 0),
            where=why.where,
            text=f"rank {rank} came {duration(row.skew_ns or 0)} after the first to {row.op} "
            f"{row.label} #{row.seq}; the others waited for it.{meanwhile}",
            advice="It is over. See in the timeline what the rank did meanwhile.",
            evidence=at_row(row, rank),
        )
