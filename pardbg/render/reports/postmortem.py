"""What a post-mortem found, in lines: each rank's last sign of life, then the findings."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Protocol

from pardbg.analysis.findings.shared import Finding
from pardbg.render.draw.cells import clean
from pardbg.render.draw.severity import SIGN
from pardbg.words import duration, ranks_text


class RankEnd(Protocol):
    """What is said of a rank (``pardbg.hub.postmortem.Rank``)."""

    rank: int
    alive: bool
    step: int
    what: str
    open_op: str | None
    open_ns: int
    last_ns: int
    from_ring: int
    lost: int


def lines(ranks: Sequence[RankEnd], findings: Sequence[Finding]) -> list[str]:
    """80 columns, ranks in order."""
    made = []
    newest = max((rank.last_ns for rank in ranks), default=0)
    for rank in sorted(ranks, key=lambda r: r.rank):
        doing = clean(rank.what or "host code")
        if rank.open_op:
            doing += f", {clean(rank.open_op)} open for {duration(rank.open_ns)}"
        made.append(f"rank {rank.rank:<3} step {rank.step:<5} {doing}")
        said = f"{rank.from_ring:,} records from its ring"
        if rank.lost:
            said += f", {rank.lost:,} lost before them"
        if rank.alive:
            said += ", its process is alive"
        earlier = newest - rank.last_ns
        if earlier > 1_000_000_000:
            said += f", last sign of life {duration(earlier)} before the others'"
        made.append(f"         {said}")
    silent = [rank.rank for rank in ranks if not rank.from_ring and not rank.alive]
    if silent:
        made.append(f"{ranks_text(silent)}: the session file already had all of it")
    if findings:
        made.append("")
    for finding in findings:
        mark = SIGN[finding.severity][0]
        made += wrap(f"{mark} {finding.text}", 80, subsequent_indent="  ")
    return made
