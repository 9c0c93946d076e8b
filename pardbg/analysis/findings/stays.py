"""Calls that do not end while nobody is missing: set-up, a key that nobody sets, a checkpoint, the
exit of a process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.shared import Evidence, Finding
from pardbg.analysis.hangs.stacks import place
from pardbg.analysis.hangs.standstill import Seen, seen
from pardbg.analysis.hangs.waitgraph import PendingOp, WaitGraph
from pardbg.words import duration, ranks_text

IDLE_CORES: Final = 0.1
"""Cores used; below that it sleeps or waits."""
IDLE_NS: Final = 4_000_000_000
"""A call of a rank alone that stands still and uses no CPU for so long."""
BUSY_NS: Final = 60_000_000_000
"""... and one that works."""
_MAX_TOLD: Final = 8
_ADVICE: Final = {
    "exit": "The program is over: look for threads that are no daemons, for atexit handlers and "
    "for objects whose end waits (loaders, writers, process groups).",
    "destroy_process_group": "Let ops end before the group goes: wait for async ones, and have all "
    "ranks come to a barrier first.",
    "store": "Some rank must set that key: compare the name, and look at what the rank that sets "
    "it does instead.",
    "file": "Look at the disk or the network file system it writes to or reads from.",
}


def stays(view: View, graph: WaitGraph) -> Iterable[Finding]:
    """Per rank its oldest call that stays, but for ranks that others are told to wait for."""
    blamed = {rank for blame in graph.blames for rank in blame.ranks}
    told = 0
    for op in graph.alone:
        if op.rank in blamed or told >= _MAX_TOLD:
            continue
        now = seen(view, op.rank)
        still = _is_idle(now) and view.t_ns - max(op.since_ns, now.moved_ns) >= IDLE_NS
        if still or view.t_ns - op.since_ns >= BUSY_NS:
            told += 1
            yield _finding(view, op, now, still)


def _is_idle(now: Seen) -> bool:
    asleep = now.os_state in ("", "S") and now.cpu is not None and now.cpu < IDLE_CORES
    return asleep or now.stopped or now.os_state == "D"


def _finding(view: View, op: PendingOp, now: Seen, still: bool) -> Finding:
    where = place(now.frames)
    at = f" at {where}" if where else ""
    doing = "uses no CPU" if still else "works on"
    what = "does not end: it is in its exit" if op.op.op == "exit" else f"is in {op.text}"
    return Finding(
        kind="stuck-call",
        severity="warning" if still else "info",
        ranks=(op.rank,),
        culprits=(op.rank,),
        where=where,
        t_ns=op.since_ns,
        text=f"{ranks_text([op.rank])} {what} for {duration(view.t_ns - op.since_ns)}{at}, and "
        f"{doing}.",
        advice=_advice(op),
        evidence=Evidence(op.since_ns, op.rank, "timeline", op=op.text),
        first_ns=op.since_ns,
    )


def _advice(op: PendingOp) -> str:
    return _ADVICE["store"] if op.at_store else _ADVICE.get(op.op.op, _ADVICE["file"])
