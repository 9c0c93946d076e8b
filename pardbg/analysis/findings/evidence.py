"""Where to look for a collective."""

from __future__ import annotations

from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.findings.finding import Evidence


def first(row: CollectiveRow) -> int:
    """Return when its first rank issued it, in ns."""
    return min(row.issued.values(), default=0)


def at_row(row: CollectiveRow, rank: int | None) -> Evidence:
    """Return the collective itself, on its screen."""
    return Evidence(first(row), rank, "collectives", op=f"{row.op} {row.label} #{row.seq}")
