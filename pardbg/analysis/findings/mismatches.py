"""Ranks that called different ops, or the same one with other arguments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pardbg.analysis.asof import View
from pardbg.analysis.findings.shared import at_row, first
from pardbg.analysis.matching import collectives
from pardbg.analysis.model import CollectiveRow, Finding
from pardbg.analysis.places import place
from pardbg.analysis.standstill import seen

_ADVICE: Final = {
    "op mismatch": "All ranks of a group must call the same ops in the same order.",
    "size mismatch": "All ranks must bring tensors of the same size to this op: look at uneven "
    "last batches and at parameters that differ.",
    "dtype mismatch": "All ranks must bring the same dtype; the backend adds the bytes up as they "
    "are and says nothing.",
    "root mismatch": "All ranks must name the same src or dst: a global rank, also in subgroups.",
}

DECIDED_AFTER_NS: Final = 1_000_000_000
"""How long the ranks that have not come are waited for, to know which ones differ from most."""


def mismatches(view: View) -> Iterable[Finding]:
    """One per group, kind and culprits: the first that is known, and how many there are."""
    found: dict[tuple[str, str, tuple[int, ...]], list[CollectiveRow]] = {}
    shifted: set[str] = set()
    for row in collectives(view):
        if row.group in shifted or not row.verdict.endswith("mismatch"):
            continue
        if row.verdict == "op mismatch":
            shifted.add(row.group)  # what follows in this group is shifted against each other
        found.setdefault((row.group, row.verdict, row.culprits), []).append(row)
    known = {key: rows for key, rows in found.items() if key[2]}
    for (group, verdict, culprits), rows in found.items():
        if not culprits:
            of_others = [k for g, v, k in known if (g, verdict) == (group, v)]
            rows = [row for row in rows if not _too_early(view, row, of_others)]
        if rows:
            yield _finding(view, rows)


def _too_early(view: View, row: CollectiveRow, known: Sequence[tuple[int, ...]]) -> bool:
    """Whether ranks are still to come that decide who differs from most, or that is known of the
    ops before."""
    came = {a.rank for a in row.arrivals if a.issued_ns is not None}
    if len(came) == len(row.arrivals):
        return False
    if any(came & set(culprits) for culprits in known):
        return True
    return view.run_end is None and view.t_ns - first(row) < DECIDED_AFTER_NS


def _finding(view: View, rows: Sequence[CollectiveRow]) -> Finding:
    row = rows[0]
    again = f" So in {len(rows)} of the last collectives." if len(rows) > 1 else ""
    stands = {a.rank for a in row.arrivals if a.completed_ns is None}
    places = (place(seen(view, r).frames) for r in row.culprits if r in stands & set(view.ranks))
    return Finding(
        kind=row.verdict.replace(" ", "-"),
        severity="error",
        ranks=tuple(a.rank for a in row.arrivals if a.issued_ns is not None),
        culprits=row.culprits,
        group=row.group,
        seq=row.seq,
        where=next((at for at in places if at), None),
        t_ns=first(rows[-1]),
        text=f"{row.verdict} in {row.group} #{row.seq}: {row.detail}.{again}",
        advice=_ADVICE[row.verdict],
        evidence=at_row(row, row.culprits[0] if row.culprits else None),
        first_ns=first(row),
    )
