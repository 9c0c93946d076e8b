"""Ranks that disagree by TORCH_DISTRIBUTED_DEBUG=DETAIL, where each rank reports what it saw."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from pardbg.joblog.conclusion import Conclusion, Facts, odd
from pardbg.joblog.events import Disagree, Failure

MAX_LINES: Final = 4


def disagreement(
    reports: Sequence[Disagree], raised: Sequence[Failure], seen: Collection[int]
) -> Conclusion:
    """Return the conclusion on unlike ops, by all ranks' reports of the first op. Each rank names
    another that differs, so the odd ranks are known only where the log has a side of each."""
    first = reports[0]
    reports = [one for one in reports if one.seq == first.seq]
    sides = {
        rank: f"{op}{shape}"
        for one in reports
        for rank, op, shape in zip(one.ranks, one.ops, one.shapes, strict=True)
    }
    differ = odd({rank: (side, None, None) for rank, side in sides.items()})
    culprits: tuple[int, ...] = ()
    most, other = (f"{sides[rank]} on rank {rank}" for rank in first.ranks)
    facts: Facts = (("most", most), ("other", other))
    if differ is not None and differ[0] and {*seen, *range(max(sides))} <= sides.keys():
        culprits, facts = differ
    odds = {id(one.line): one.rank in culprits for one in reports}
    placed = [one for one in raised if one.place and id(one.line) in odds]
    placed.sort(key=lambda one: not odds[id(one.line)])
    return Conclusion(
        "mismatch", culprits, tuple(sorted(sides)), "", first.seq, first.ops[0], facts,
        tuple(one.line for one in reports[:MAX_LINES]), place=placed[0].place if placed else None,
    )  # fmt: skip
