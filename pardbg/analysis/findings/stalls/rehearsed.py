"""Ranks of a rehearsal whose collectives are out of order, as found when the rehearsal was written:
then each rank's ops are known to their end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.findings.finding import Candidate, Evidence
from pardbg.analysis.findings.kinds.mismatch_kinds import ORDER_KINDS, RehearsedOrder
from pardbg.events import fields

NOTE: Final = "rehearsed order"
PLACES: Final = "rehearsed places"


def orders(view: View) -> Iterator[Candidate]:
    """Find one candidate per kind, op and place, with all ranks that share it."""
    rows = view.store.notes.get(NOTE)
    alike: dict[tuple[str, str, str], list[Mapping[str, object]]] = {}
    for row in rows if isinstance(rows, list) else []:
        kind = fields.text(row, "kind") if isinstance(row, Mapping) else ""
        if kind in ORDER_KINDS or kind.endswith("-mismatch"):
            at = kind, fields.text(row, "where"), fields.text(row, "op")
            alike.setdefault(at, []).append(row)
    for (kind, where, op), same in alike.items():
        row, ranks = same[0], tuple(sorted(fields.integer(row, "rank", 0) for row in same))
        yield Candidate(
            kind=kind, ranks=ranks, culprits=ranks, where=where or None, t_ns=view.t_ns,
            group=fields.text_or_none(row, "group"), seq=fields.integer_or_none(row, "seq"),
            evidence=Evidence(view.t_ns, ranks[0], "collectives", op=op),
            facts=RehearsedOrder(kind, op, fields.text(row, "text")),
        )  # fmt: skip


@per_view
def places(view: View) -> Mapping[tuple[int, int], str]:
    """Return (rank, time of issue in ns) -> place of the op, for ops that not all ranks issued
    alike."""
    rows = view.store.notes.get(PLACES)
    return {
        (row[0], row[1]): str(row[2])
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, list) and len(row) == 3 and type(row[0]) is type(row[1]) is int
    }
