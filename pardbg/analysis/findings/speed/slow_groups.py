"""Groups whose collectives take longer than those of their siblings: other ranks, the same op,
the same size, the same number of ranks, as the data-parallel groups of a pipeline's stages are.

Within one group no link can be told from another: each rank's op ends when the slowest has. So a
group without siblings is not looked at, and of a group of three or more no link is named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.matched import CollectiveRow
from pardbg.analysis.findings.shared import Finding, at_row, first
from pardbg.analysis.findings.speed.windows import Window, per_window, rows_by_step
from pardbg.words import duration, ranks_text, size

SLOW: Final = 3.0
"""Times slower than the median of the siblings."""
SLOW_NS: Final = 1_000_000
SLOW_OF_STEP: Final = 0.05
"""It costs at least so much of a step."""
LEAST: Final = 12
"""Ops of a group that must have been seen."""
SIBLINGS: Final = 2
_TRUE_ENDS: Final = ("completed", "device")
"""Where an end is only known from a wait, it says when somebody looked, not when it was."""
Ranks = tuple[int, ...]
Kind = tuple[str, int, int]
"""(op, size class, number of ranks)"""


@per_window
def slow_groups(view: View, looked_at: Window) -> Iterable[Finding]:
    """One per group that is slower than its siblings, by what costs most."""
    worst: dict[Ranks, Finding] = {}
    for groups in _by_kind(rows_by_step(view, looked_at)).values():
        taken = {
            ranks: median(row.transfer_ns or 0 for row in rows)
            for ranks, rows in groups.items() if len(rows) >= LEAST
        }  # fmt: skip
        for ranks, own in taken.items():
            siblings = [ns for other, ns in taken.items() if not set(other) & set(ranks)]
            if len(siblings) < SIBLINGS or own < max(SLOW_NS, SLOW * median(siblings)):
                continue
            found = _finding(looked_at, ranks, groups[ranks], own, median(siblings), len(siblings))
            cost = found.cost_ns_per_step or 0
            if cost < SLOW_OF_STEP * looked_at.step_ns:
                continue
            if ranks not in worst or cost > (worst[ranks].cost_ns_per_step or 0):
                worst[ranks] = found
    yield from worst.values()


def _by_kind(
    steps: Mapping[int, Sequence[CollectiveRow]],
) -> dict[Kind, dict[Ranks, list[CollectiveRow]]]:
    found: dict[Kind, dict[Ranks, list[CollectiveRow]]] = defaultdict(lambda: defaultdict(list))
    for row in (row for rows in steps.values() for row in rows):
        if row.transfer_ns is None or row.bytes <= 0 or row.op == "barrier":
            continue
        if any(arrival.source not in _TRUE_ENDS for arrival in row.arrivals):
            continue
        ranks = tuple(sorted(arrival.rank for arrival in row.arrivals))
        found[row.op, row.bytes.bit_length(), len(ranks)][ranks].append(row)
    return found


def _finding(
    looked_at: Window, ranks: Ranks, rows: Sequence[CollectiveRow], own: float, usual: float,
    siblings: int,
) -> Finding:  # fmt: skip
    newest = rows[-1]
    sent = size(median(row.bytes for row in rows))
    which = "" if len(ranks) == 2 else " Which of its links it is cannot be told from that."
    name = f"the link between {ranks_text(ranks)}" if len(ranks) == 2 else "a link in the group"
    of = f"{newest.group} ({ranks_text(ranks)})"
    return Finding(
        kind="slow-link",
        severity="warning",
        ranks=ranks,
        culprits=ranks,
        group=newest.group,
        seq=newest.seq,
        t_ns=first(newest),
        first_ns=looked_at.begin_ns,
        text=f"{name} is slow: {newest.op} of {sent} in {of} takes {duration(own)} once all are "
        f"there, {duration(usual)} in the {siblings} groups like it.{which}",
        advice=f"Look at the hosts of {ranks_text(ranks)} and the path between them: cable, switch "
        f"port, adapter, another program's traffic.",
        cost_ns_per_step=round((own - usual) * len(rows) / len(looked_at.steps)),
        evidence=at_row(newest, ranks[0]),
    )
