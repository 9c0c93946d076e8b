"""What a rank of a recording does at the cursor, by the records around it: those that begin before
the cursor and end after it. (A STATE message is some 100 ms old, and steps are often shorter.)"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.comm.ops import group_label
from pardbg.store.process import Process
from pardbg_agent import wire

RankStateName = Literal["running", "waiting", "held", "stale", "lost", "ended", "unknown"]

_LATER: Final = ("step", "phase", "action", "wait", "done", "done_p2p", "held")
_BEHIND: Final = 64
"""Rows are sorted by their end: so many that end after the cursor are looked at."""
_P2P, _SEND = int(wire.Flag.P2P), int(wire.Flag.SEND)


class Doing(NamedTuple):
    """What the records say."""

    state: RankStateName
    text: str
    since_ns: int


def recorded(view: View, process: Process, least_wait_ns: int) -> Doing | None:
    """What the rank is in at the cursor; None in a live run's newest moment, and where its records
    end before the cursor: what it did last it may still do. A wait counts from ``least_wait_ns``
    on, its whole length."""
    if view.live or not any(_ends_later(process, name, view.t_ns) for name in _LATER):
        return None
    wait = _around(view, process, "wait")
    if wait is not None:
        table = process.table("wait")
        since = int(table.col("t0_ns")[wait])
        if int(table.when[wait]) - since >= least_wait_ns:
            return Doing("waiting", _op_text(view, process, wait), since)
    phase = _around(view, process, "phase")
    if phase is not None:
        table = process.table("phase")
        name = process.name(int(table.col("name_id")[phase]))
        return Doing("running", name, int(table.col("t0_ns")[phase]))
    if not len(process.table("phase")):
        return None
    return Doing("running", "host code", _last_end(view, process))


def _ends_later(process: Process, name: str, t_ns: int) -> bool:
    table = process.table(name)
    return len(table) > 0 and int(table.when[len(table) - 1]) > t_ns


def _around(view: View, process: Process, name: str) -> int | None:
    """The row that holds the cursor; the innermost of several."""
    table = process.table(name)
    first = view.visible(process, name)
    begins = table.col("t0_ns")[first : first + _BEHIND]
    rows = np.flatnonzero(begins <= view.t_ns)
    return first + int(rows[begins[rows].argmax()]) if len(rows) else None


def _last_end(view: View, process: Process) -> int:
    """When the last phase or wait before the cursor ended."""
    ends = [process.started_ns or view.begin_ns]
    for name in ("phase", "wait"):
        visible = view.visible(process, name)
        if visible:
            ends.append(int(process.table(name).when[visible - 1]))
    return max(ends)


def _op_text(view: View, process: Process, row: int) -> str:
    """``all_gather dp_shard #80``, ``recv from 3``."""
    table = process.table("wait")
    flags, peer = int(table.col("flags")[row]), int(table.col("peer")[row])
    if flags & _P2P:
        if peer < 0:
            return "recv from any rank"
        return f"send to {peer}" if flags & _SEND else f"recv from {peer}"
    op = process.ops.get(int(table.col("name_id")[row]))
    name = op.op if op is not None else process.name(int(table.col("name_id")[row])) or "an op"
    group = process.groups.get(int(table.col("group_id")[row]))
    where = f" {group_label(view, group)}" if group is not None else ""
    return f"{name}{where} #{int(table.col('seq')[row])}"
