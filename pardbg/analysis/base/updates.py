"""How often each rank's optimizer has stepped, at one point that all ranks passed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.store.process import Process


def updates(view: View, ranks: Iterable[int], group_key: str) -> Mapping[int, int]:
    """rank -> optimizer steps before the newest collective of the group that all of them issued;
    empty where there is none, or where one of them has no optimizer."""
    issued = {rank: _issued(view, view.ranks[rank], group_key) for rank in ranks}
    newest = min((max(seqs, default=-1) for seqs in issued.values()), default=-1)
    if newest < 0 or any(newest not in seqs for seqs in issued.values()):
        return {}
    found = {r: _steps(view, view.ranks[r], seqs[newest]) for r, seqs in issued.items()}
    return found if all(found.values()) else {}


def _issued(view: View, process: Process, group_key: str) -> dict[int, int]:
    """seq -> when, of the group's last collectives."""
    table, visible = view.rows(process, "issue")
    part = slice(max(0, visible - 4096), visible)
    ids = [gid for gid, group in process.groups.items() if group.key == group_key]
    of = np.isin(table.col("group_id")[part], ids)
    seqs, times = table.col("seq")[part][of].tolist(), table.col("t0_ns")[part][of].tolist()
    return dict(zip(seqs, times, strict=True))


def _steps(view: View, process: Process, until_ns: int) -> int:
    table, visible = view.rows(process, "phase")
    names = [i for i, name in process.names.items() if name == "optimizer"]
    ended = table.when[:visible] <= until_ns
    return int(np.count_nonzero(np.isin(table.col("name_id")[:visible], names) & ended))
