"""A rank's sends, receives and host waits in one step, as evidence for communication."""

from __future__ import annotations

from pardbg.analysis.base.asof import View
from pardbg.analysis.pipeline.dependencies import producer
from pardbg.analysis.pipeline.idle import Call
from pardbg_agent import wire

Receives = dict[tuple[str, int, int], list[tuple[int, int | None]]]
"""(F, B or "" where the op does not say, stage, microbatch) -> (issued, completed or None)"""


def receives(view: View, rank: int, step: int) -> Receives:
    """The step's receives that the pipeline labelled with what they carry."""
    process = view.ranks.get(rank)
    if process is None:
        return {}
    table, visible = view.rows(process, "issue_p2p")
    rows = table.step_rows(step, step, visible)
    if not len(rows):
        return {}
    recv = (table.col("flags")[rows] & int(wire.Flag.SEND)) == 0
    rows = rows[recv & (table.col("microbatch")[rows] >= 0)]
    if not len(rows):
        return {}
    done = completions(view, rank, step)
    columns = ("name_id", "stage", "microbatch", "t0_ns", "group_id", "seq")
    found: Receives = {}
    for name, stage, mb, t0, group, seq in zip(
        *(table.col(c)[rows].tolist() for c in columns), strict=True
    ):
        op = process.ops.get(name)
        label = op.reduce if op is not None else ""
        found.setdefault((label, stage, mb), []).append((t0, done.get((group, seq))))
    return found


def calls(view: View, rank: int, step: int, num_stages: int) -> list[Call]:
    """The step's calls that issue a labelled send or receive, by begin."""
    process = view.ranks.get(rank)
    if process is None:
        return []
    table, visible = view.rows(process, "issue_p2p")
    rows = table.step_rows(step, step, visible)
    rows = rows[table.col("microbatch")[rows] >= 0]
    names = ("name_id", "stage", "microbatch", "t0_ns", "t1_ns", "flags")
    columns = (table.col(c)[rows].tolist() for c in names)
    made = []
    for name, stage, mb, t0, t1, flags in zip(*columns, strict=True):
        op = process.ops.get(name)
        label = op.reduce if op is not None else ""
        # A send's tensor is made by the action of its own label, a receive's by the one before.
        own = f"{stage}{label}{mb}"
        source = own if flags & int(wire.Flag.SEND) else producer(own, num_stages)
        if label and source is not None:
            made.append(Call(t0, t1, source))
    return sorted(made)


def completions(view: View, rank: int, step: int) -> dict[tuple[int, int], int]:
    """(group id, seq) -> completion of the rank's p2p ops of a step (a completion carries the
    step of its issue)."""
    table, visible = view.rows(view.ranks[rank], "done_p2p")
    rows = table.step_rows(step, step, visible)
    columns = (table.col(c)[rows].tolist() for c in ("group_id", "seq", "t1_ns"))
    return {(group, seq): t1 for group, seq, t1 in zip(*columns, strict=True)}
