"""Messages whose sides do not fit: another dtype or size sent than received."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.base.matched import P2PRow
from pardbg.analysis.comm.p2p import p2p_rows
from pardbg.analysis.findings.shared import Evidence, Finding
from pardbg.analysis.hangs.stacks import place
from pardbg.analysis.hangs.standstill import seen
from pardbg.words import size

LEAST_BEFORE: Final = 2
"""Messages of an edge that say what is usual there."""
_MAX_EDGES: Final = 8
_BAD: Final = ("size mismatch", "dtype mismatch")
Edge = tuple[str, int, int]
"""(group, src, dst)"""
_ADVICE: Final = {
    "p2p-size-mismatch": "Both sides must bring tensors of one size: look at shapes that are "
    "worked out apart from each other, and at a last batch.",
    "p2p-dtype-mismatch": "Both sides must bring one dtype: the bytes arrive as they are, and "
    "nothing says that they are read as other numbers.",
}


def messages(view: View) -> Iterable[Finding]:
    """Per edge and kind the first message that does not fit, and how many there are."""
    by_edge: dict[Edge, list[P2PRow]] = defaultdict(list)
    for row in p2p_rows(view):
        by_edge[row.group, row.src, row.dst].append(row)
    told = 0
    for rows in by_edge.values():
        for made in _uneven(view, rows):
            if told < _MAX_EDGES:
                yield made
            told += 1


@per_view
def mispaired(view: View) -> frozenset[int]:
    """Ranks in a message whose sides do not fit: that they wait, or abort, follows from it."""
    return frozenset(rank for finding in messages(view) for rank in finding.ranks)


def _uneven(view: View, rows: Sequence[P2PRow]) -> Iterable[Finding]:
    for verdict in _BAD:
        bad = [row for row in rows if row.verdict == verdict and row.sides is not None]
        if bad:
            yield _sides(view, bad, [row for row in rows if row.verdict == "matched"])


def _sides(view: View, bad: Sequence[P2PRow], good: Sequence[P2PRow]) -> Finding:
    row, number = bad[0], len(bad)
    assert row.sides is not None
    what = 0 if row.verdict == "size mismatch" else 1
    says = [size(side[0]) if what == 0 else f"{side[1]} ({size(side[0])})" for side in row.sides]
    usual = {r.sides[0][what] for r in good if r.sides is not None and r.tag == row.tag}
    culprits, why = _odd([side[what] for side in row.sides], usual, len(good), row)
    again = f" So in {number} of the last messages." if number > 1 else ""
    return _finding(
        view, row, f"p2p-{row.verdict.replace(' ', '-')}", culprits,
        f"{row.verdict} between ranks {row.src} and {row.dst}: rank {row.src} sends {says[0]}, "
        f"rank {row.dst} receives {says[1]}.{why}{again}",
    )  # fmt: skip


def _odd(
    values: Sequence[object], usual: set[int | str], before: int, row: P2PRow
) -> tuple[tuple[int, ...], str]:
    """(who differs from the messages before, in words); both where that is not known."""
    both = (row.src, row.dst)
    if len(usual) == 1 and before >= LEAST_BEFORE:
        odd = tuple(rank for rank, value in zip(both, values, strict=True) if value not in usual)
        if len(odd) == 1:
            return odd, f" Rank {odd[0]} differs from the messages before."
    return tuple(sorted(both)), ""


def _finding(view: View, row: P2PRow, kind: str, culprits: tuple[int, ...], text: str) -> Finding:
    places = {r: place(seen(view, r).frames) for r in (row.src, row.dst) if r in view.ranks}
    at = ", ".join(f"rank {rank} at {where}" for rank, where in places.items() if where)
    begun = min(t for t in (row.send_ns, row.recv_ns) if t is not None)
    return Finding(
        kind=kind,
        severity="error",
        ranks=(row.src, row.dst),
        culprits=culprits,
        group=row.group,
        where=next((places[r] for r in culprits if places.get(r)), None),
        t_ns=begun,
        text=f"{text}{f' They stand: {at}.' if at else ''}",
        advice=_ADVICE[kind],
        evidence=Evidence(begun, culprits[0], "collectives", op=f"{row.src}→{row.dst}"),
        first_ns=begun,
    )  # fmt: skip
