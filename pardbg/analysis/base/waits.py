"""When the host of a rank waited for messages."""

from __future__ import annotations

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.intervals import Interval, union
from pardbg_agent import wire


def p2p_waits(view: View, rank: int, window: Interval) -> list[Interval]:
    """Stretches of the window in which the host waited for p2p ops, merged and in order."""
    process = view.ranks.get(rank)
    if process is None:
        return []
    table, visible = view.rows(process, "wait")
    begin, end = window
    lo = int(np.searchsorted(table.when[:visible], begin, side="left"))
    hi = int(np.searchsorted(table.when[:visible], end + table.longest_ns, side="right"))
    part = slice(lo, hi)
    t0, t1 = table.col("t0_ns")[part], table.col("t1_ns")[part]
    p2p = (table.col("flags")[part] & int(wire.Flag.P2P)) != 0
    keep = np.flatnonzero(p2p & (t0 < end))
    return union(zip(t0[keep].tolist(), t1[keep].tolist(), strict=True))
