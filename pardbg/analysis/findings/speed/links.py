"""Finds slow links by their messages, and slow groups by their collectives compared with siblings:
groups of other ranks with the same op, size and number of ranks, such as the data-parallel groups
of a pipeline's stages.

Within one group no link can be told from another: each rank's op ends when the slowest has. So a
group without siblings is left out, and in a group of three or more no link is named.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.intervals import Interval, clip, total
from pardbg.analysis.base.spans import p2p_waits
from pardbg.analysis.comm.collective_columns import CollectiveColumns
from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.comm.p2p import Transfer, transfers
from pardbg.analysis.findings.finding import Candidate, Evidence, at_row, first
from pardbg.analysis.findings.kinds.speed_kinds import SlowGroup, SlowLink
from pardbg.analysis.findings.speed.windows import Window, issued_since, per_window, rows_in
from pardbg.store.table import Array

SLOW: Final = 3.0
"""Factor above the median of the siblings or of the other links that counts as slow."""
SLOW_NS: Final = 1_000_000
SLOW_OF_STEP: Final = 0.05
"""Minimum cost of a slow link or group, as a share of a step."""
LEAST: Final = 12
"""Minimum number of ops of a group, or of messages on a link."""
SIBLINGS: Final = 2
AWAITED: Final = 0.8
FAST, MOST, CLEARLY = 20, 80, 1.5
"""Percentiles and factor: the slow link's 20th is at least 1.5 times the others' 80th."""
Ranks = tuple[int, ...]
Link = tuple[int, int]
Kind = tuple[str, int, int]
"""(op, size class, number of ranks)"""


@per_window
def slow_groups(view: View, looked_at: Window) -> Iterable[Candidate]:
    """Find groups slower than their siblings; one candidate per group, for its costliest op."""
    worst: dict[Ranks, Candidate] = {}
    rows = rows_in(view, looked_at)
    for groups in _by_kind(rows).values():
        taken = {
            ranks: median(rows.of["transfer_ns"][at].tolist())
            for ranks, at in groups.items() if len(at) >= LEAST
        }  # fmt: skip
        fastest = min(taken.values(), default=0.0)
        for ranks, own in taken.items():
            if own < max(SLOW_NS, SLOW * fastest):  # without a look at each pair of groups
                continue
            siblings = [ns for other, ns in taken.items() if not set(other) & set(ranks)]
            if len(siblings) < SIBLINGS or own < max(SLOW_NS, SLOW * median(siblings)):
                continue
            of = rows.rows(groups[ranks].tolist())
            found = _slow_group(looked_at, of, own, median(siblings), len(siblings))
            _keep_worst(looked_at, worst, ranks, found)
    yield from worst.values()


def _keep_worst(
    looked_at: Window, worst: dict[Ranks, Candidate], at: Ranks, found: Candidate
) -> None:
    """Keep the most expensive candidate per group or link, if its cost is large enough."""
    cost = found.cost_ns_per_step or 0
    known = worst[at].cost_ns_per_step or 0 if at in worst else -1
    if cost >= SLOW_OF_STEP * looked_at.step_ns and cost > known:
        worst[at] = found


def _by_kind(rows: CollectiveColumns) -> dict[Kind, dict[Ranks, Array]]:
    """Return kind -> ranks -> indices of the matched collectives of that kind on these ranks."""
    of, barrier = rows.of, rows.ops.index("barrier") if "barrier" in rows.ops else -1
    good = (of["transfer_ns"] >= 0) & (of["bytes"] > 0) & (of["true_ends"] != 0)
    at = np.flatnonzero(good & (of["op"] != barrier))
    bits = np.frexp(of["bytes"][at].astype(np.float64))[1]
    which = (of["group"][at] << 8 | bits) << 32 | of["op"][at]
    _, firsts, inverse = np.unique(which, return_index=True, return_inverse=True)
    alike = np.split(at[np.lexsort((inverse,))], np.cumsum(np.bincount(inverse))[:-1])
    found: dict[Kind, dict[Ranks, Array]] = defaultdict(dict)
    for first_at in np.argsort(firsts).tolist():
        own = alike[first_at]
        begin, count = rows.starts[own[0]], int(of["count"][own[0]])
        ranks = tuple(sorted(rows.parts["rank"][begin : begin + count].tolist()))
        same = found[rows.ops[of["op"][own[0]]], int(bits[firsts[first_at]]), count]
        same[ranks] = np.sort(np.concatenate((same[ranks], own))) if ranks in same else own
    return found


def _slow_group(
    looked_at: Window, rows: Sequence[CollectiveRow], own: float, usual: float, siblings: int
) -> Candidate:
    newest = rows[-1]
    ranks = tuple(sorted(arrival.rank for arrival in newest.arrivals))
    return Candidate(
        kind="slow-link", ranks=ranks, culprits=ranks, group=newest.group, seq=newest.seq,
        t_ns=first(newest), first_ns=looked_at.begin_ns, evidence=at_row(newest, ranks[0]),
        cost_ns_per_step=round((own - usual) * len(rows) / len(looked_at.steps)),
        facts=SlowGroup(newest.op, median(row.bytes for row in rows), own, usual, siblings),
    )  # fmt: skip


# -- messages


@per_window
def slow_links(view: View, looked_at: Window) -> Iterable[Candidate]:
    """Find links over which messages take longer than over the others."""
    by_size: dict[int, dict[Link, list[Transfer]]] = defaultdict(lambda: defaultdict(list))
    waits = _Waits(view, looked_at.begin_ns)
    issued = issued_since(view, "issue_p2p", looked_at.begin_ns)
    for one in transfers(view, issued // 2 + 1):
        if one.bytes > 0 and waits.covered(one):
            by_size[one.bytes.bit_length()][one.src, one.dst].append(one)
    worst: dict[Ranks, Candidate] = {}
    for links in by_size.values():
        taken = {
            link: median(one.moving_ns for one in own)
            for link, own in links.items() if len(own) >= LEAST
        }  # fmt: skip
        for link, own in taken.items():
            others = [ns for other, ns in taken.items() if other != link]
            if len(others) < 2 or own < SLOW_NS or own < SLOW * max(median(others), 1):
                continue
            if not _clearly(links, link, taken):
                continue
            found = _slow_link(looked_at, link, links[link], own, median(others))
            _keep_worst(looked_at, worst, link, found)
    yield from worst.values()


def _slow_link(
    looked_at: Window, link: Link, rows: Sequence[Transfer], own: float, usual: float
) -> Candidate:
    newest, (src, dst) = rows[-1], link
    begun = newest.send_ns
    return Candidate(
        kind="slow-link", ranks=link, culprits=link, group=newest.group, t_ns=begun,
        first_ns=looked_at.begin_ns, evidence=Evidence(begun, dst, "traffic", op=f"{src}→{dst}"),
        cost_ns_per_step=round((own - usual) * len(rows) / len(looked_at.steps)),
        facts=SlowLink(src, dst, median(row.bytes for row in rows), own, usual),
    )  # fmt: skip


def _clearly(
    links: Mapping[Link, Sequence[Transfer]], link: Link, taken: Mapping[Link, float]
) -> bool:
    """Return whether even the link's fast messages take longer than most on other links, which a
    busy host does not explain."""
    fast = float(np.percentile([one.moving_ns for one in links[link]], FAST))
    others = [one.moving_ns for other in taken if other != link for one in links[other]]
    return fast >= CLEARLY * float(np.percentile(others, MOST))


class _Waits:
    """Intervals in which each receiver waited for point-to-point ops."""

    def __init__(self, view: View, since_ns: int) -> None:
        self._view, self._since = view, since_ns
        self._by_rank: dict[int, list[Interval]] = {}

    def covered(self, one: Transfer) -> bool:
        """Return whether the receiver waited while the message travelled; otherwise its completion
        was noticed late and says nothing about the link."""
        if one.moving_ns <= 0 or one.dst not in self._view.ranks:
            return False
        span = (one.done_ns - one.moving_ns, one.done_ns)
        waits = self._of(one.dst)
        at = bisect_left(waits, span[0], key=lambda wait: wait[1])
        near = waits[at : at + 8]
        return total(clip(near, *span)) >= AWAITED * one.moving_ns

    def _of(self, rank: int) -> list[Interval]:
        if rank not in self._by_rank:
            self._by_rank[rank] = p2p_waits(self._view, rank, (self._since, self._view.t_ns))
        return self._by_rank[rank]
