"""Ranks that hand a batch on without a schedule: naive model parallelism, seen in what it does.

There is no plan and no stage; each rank has forward and backward phases and sends and receives
between them. Where each forward but the first waits for a receive from another rank's, the ranks
form a chain, and their phases can be drawn as a pipeline's actions: F and B of stage k, the n-th
forward of a step as microbatch n.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.intervals import clip, subtract, union
from pardbg.analysis.base.values import ActionSpan
from pardbg.analysis.pipeline.receives import waits
from pardbg.store.process import Process
from pardbg_agent import wire

KINDS: Final = {"forward": "F", "backward": "B"}


def chain(view: View) -> tuple[int, ...]:
    """The ranks in the order in which a batch passes them; empty where they are no chain."""
    cache = view.memo("chain")
    key = (view.epoch, tuple(view.ranks))
    known: tuple[int, tuple[int, ...]] | None = cache.get(key)
    if known is not None and known[0] <= view.t_ns:  # seen by then: an earlier cursor looks again
        return known[1]
    if len(view.ranks) < 2 or not all(map(_sends, view.ranks.values())):
        return ()
    step = min(_last_step(view, process) for process in view.ranks.values())
    tried = view.memo("chain tried")
    if step < 0 or (key, step) in tried:
        return ()
    found = _order(view, step)
    if found:
        cache[key] = (view.t_ns, found)
    else:
        tried[key, step] = True
    return found


def chain_spans(view: View, rank: int, stage: int, step: int) -> list[ActionSpan]:
    """The rank's forwards and backwards in a step that have ended, by begin.

    A forward is inferred from what is around it where the program does not say it, and then the
    receive of its input, the send of its output and the wait for the gradient lie within: what
    counts is the longest stretch between two of those.
    """
    process = view.ranks.get(rank)
    if process is None:
        return []
    table, visible = view.rows(process, "phase")
    rows = table.step_rows(step, step, visible)
    columns = (table.col(c)[rows].tolist() for c in ("name_id", "t0_ns", "t1_ns"))
    made: list[ActionSpan] = []
    seen = dict.fromkeys(KINDS.values(), 0)
    for name, t0, t1 in sorted(zip(*columns, strict=True), key=lambda row: row[1]):
        kind = KINDS.get(process.name(name))
        if kind is None:
            continue
        begin, end = _longest(view, rank, step, (t0, t1)) if kind == "F" else (t0, t1)
        made.append(ActionSpan(rank, stage, kind, seen[kind], begin, end))
        seen[kind] += 1
    return made


def _longest(view: View, rank: int, step: int, span: tuple[int, int]) -> tuple[int, int]:
    table, visible = view.rows(view.ranks[rank], "issue_p2p")
    rows = table.step_rows(step, step, visible)
    issuing = zip(table.col("t0_ns")[rows].tolist(), table.col("t1_ns")[rows].tolist(), strict=True)
    moving = clip(union([*waits(view, rank, span), *issuing]), *span)
    return max(subtract([span], moving), key=lambda part: part[1] - part[0], default=span)


def _sends(process: Process) -> bool:
    """It has phases and p2p ops; and no schedule's actions."""
    return all(len(process.table(name)) for name in ("phase", "issue_p2p"))


def _last_step(view: View, process: Process) -> int:
    table, visible = view.rows(process, "step")
    return int(table.col("step")[visible - 1]) if visible else -1


def _order(view: View, step: int) -> tuple[int, ...]:
    forwards = []
    for rank in view.ranks:
        spans = [s for s in chain_spans(view, rank, 0, step) if s.kind == "F"]
        if not spans:
            return ()
        forwards.append((spans[0].t0_ns, rank))
    order = [rank for _, rank in sorted(forwards)]
    begins = {rank: t0 for t0, rank in forwards}
    if all(_received(view, b, a, step, begins[b]) for a, b in pairwise(order)):
        return tuple(order)
    return ()


def _received(view: View, rank: int, source: int, step: int, before_ns: int) -> bool:
    """The rank's receive from ``source`` was posted before its forward began."""
    table, visible = view.rows(view.ranks[rank], "issue_p2p")
    rows = table.step_rows(step, step, visible)
    columns = (table.col(c)[rows].tolist() for c in ("peer", "flags", "t0_ns"))
    return any(
        peer == source and not flags & int(wire.Flag.SEND) and t0 < before_ns
        for peer, flags, t0 in zip(*columns, strict=True)
    )
