"""Ranks of a rehearsal whose collectives are not in the order of the others, as it was found when
it was written: there each rank's ops are known to their end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.findings.shared import Evidence, Finding
from pardbg.events import fields
from pardbg.words import ranks_text

NOTE: Final = "rehearsed order"
PLACES: Final = "rehearsed places"
_ADVICE: Final = {
    "skipped-op": "All ranks of a group must call its ops: look for an `if`, an early `continue` "
    "or an empty batch around this line.",
    "extra-op": "All ranks of a group must call its ops: call it on all of them, or on none.",
    "op-order": "Issue the ops of all groups in one order on all ranks.",
    "wrong-group": "Look at which group this call names.",
    "wrong-peer": "Look at how this rank computes the peer it sends to or receives from.",
}
_MISMATCH: Final = "The same call must be made alike on all ranks that it concerns."


@per_view
def orders(view: View) -> tuple[Finding, ...]:
    """Return one finding per kind, op and place; ranks that do the same are told together."""
    said = view.store.notes.get(NOTE)
    rows = [row for row in said if isinstance(row, Mapping)] if isinstance(said, list) else []
    alike: dict[tuple[str, str, str], list[Mapping[str, object]]] = {}
    for row in rows:
        kind = fields.text(row, "kind")
        if kind in _ADVICE or kind.endswith("-mismatch"):
            alike.setdefault((kind, fields.text(row, "where"), fields.text(row, "op")), []).append(
                row
            )
    return tuple(_finding(view, kind, where, same) for (kind, where, _), same in alike.items())


@per_view
def places(view: View) -> Mapping[tuple[int, int], str]:
    """(rank, when it issued an op) -> where, of ops that not all of their ranks issued alike."""
    said = view.store.notes.get(PLACES)
    rows = said if isinstance(said, list) else []
    return {
        (row[0], row[1]): str(row[2])
        for row in rows
        if isinstance(row, list) and len(row) == 3 and type(row[0]) is type(row[1]) is int
    }


def _finding(view: View, kind: str, where: str, rows: list[Mapping[str, object]]) -> Finding:
    row, ranks = rows[0], tuple(sorted(fields.integer(row, "rank", 0) for row in rows))
    others = ranks_text(ranks[1:])
    also = f". So do {others}" if len(ranks) > 1 else ""
    return Finding(
        kind=kind, severity="error", ranks=ranks, culprits=ranks, where=where or None,
        group=fields.text_or_none(row, "group"), seq=fields.integer_or_none(row, "seq"),
        t_ns=view.t_ns, text=f"{fields.text(row, 'text')}{also}.",
        advice=_ADVICE.get(kind, _MISMATCH),
        evidence=Evidence(view.t_ns, ranks[0], "collectives", op=fields.text(row, "op")),
    )  # fmt: skip
