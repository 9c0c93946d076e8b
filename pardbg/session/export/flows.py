"""Which ops belong together: sends with their receives, collectives over their ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pardbg.analysis.base.asof import View
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.comm.p2p import p2p_rows


@dataclass(frozen=True, slots=True)
class Flow:
    """An arrow over ranks, in order of time."""

    kind: str
    """``p2p`` or ``collective``."""
    stops: tuple[tuple[int, int, int], ...]
    """(rank, begin of the op there, where the arrow touches it), ns."""


def flows(view: View) -> Iterator[Flow]:
    """From each send to its receive; through a collective's arrivals, the last one at the end."""
    for pair in p2p_rows(view, None):
        if pair.send_ns is None or pair.recv_ns is None:
            continue
        meet = max(pair.send_ns, pair.recv_ns)
        if pair.done_ns is not None:
            meet = max(pair.recv_ns, min(meet, pair.done_ns))
        yield Flow("p2p", ((pair.src, pair.send_ns, pair.send_ns), (pair.dst, pair.recv_ns, meet)))
    for row in collectives(view, None):
        arrived = sorted((a.issued_ns, a.rank) for a in row.arrivals if a.issued_ns is not None)
        if len(arrived) > 1:
            yield Flow("collective", tuple((rank, t, t) for t, rank in arrived))
