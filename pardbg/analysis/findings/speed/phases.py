"""Where a stretch of a rank's time went."""

from __future__ import annotations

from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.intervals import Interval, clip, subtract, total, union

COMPUTE: Final = ("forward", "backward", "optimizer", "pipeline")


def phases_in(view: View, rank: int, whole: Interval) -> dict[str, int]:
    """phase -> ns of the stretch. Waits for ops are communication, wherever they lie; what is in
    no phase is host."""
    waited = spans_in(view, rank, "wait", whole)
    found: dict[str, int] = {}
    covered: list[Interval] = list(waited)
    for name in ("data", *COMPUTE):
        inside = subtract(spans_in(view, rank, "phase", whole, name), covered)
        found[name] = total(inside)
        covered = union([*covered, *inside])
    found["communication"] = total(waited)
    found["host"] = whole[1] - whole[0] - total(clip(covered, *whole))
    return found


def spans_in(
    view: View, rank: int, name: str, within: Interval, wanted: str | None = None
) -> list[Interval]:
    """The rank's records of a table (of one name) that lie in a stretch of time, merged."""
    return union(span for _, span in named_in(view, rank, name, within, wanted))


def named_in(
    view: View, rank: int, name: str, within: Interval, wanted: str | None = None
) -> list[tuple[str, Interval]]:
    """So, each with its name."""
    process = view.ranks[rank]
    table, visible = view.rows(process, name)
    lo = int(np.searchsorted(table.when[:visible], within[0], side="left"))
    hi = int(np.searchsorted(table.when, within[1] + table.longest_ns, side="right"))
    columns = (table.col(c)[lo:hi].tolist() for c in ("name_id", "t0_ns", "t1_ns"))
    found: list[tuple[str, Interval]] = []
    for name_id, t0, t1 in zip(*columns, strict=True):
        op = process.ops.get(name_id) if name == "call" else None
        said = op.op if op is not None else process.name(name_id)
        if wanted is None or said == wanted:
            found += [(said, part) for part in clip([(t0, t1)], *within)]
    return found
