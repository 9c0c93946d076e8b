"""Cause of a missing rank: what the rank does instead of the op, and how long that may take."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.leads import standing
from pardbg.analysis.base.steps import last_step_rows
from pardbg.analysis.comm.op_rows import P2PRow
from pardbg.analysis.comm.ops import Issue, group_label, issues_at
from pardbg.analysis.findings.finding import Candidate, GroupKey, Label
from pardbg.analysis.findings.kinds.absence import NO_OP, Absence, Doing, LeftOut
from pardbg.analysis.hangs.blocking_calls import Blocking, samples
from pardbg.analysis.hangs.newest import newest_collectives, newest_messages
from pardbg.analysis.hangs.stacks import activity, caller, place, thread_text, whole_place
from pardbg.analysis.hangs.standstill import IDLE_CORES, Seen, first_place, is_cut_off, ran, seen
from pardbg.store.definitions import GroupDef
from pardbg_agent.wire import Flag

_FILES_NS: Final = 30_000_000_000
"""Time that reading or writing a checkpoint may take, in ns."""
_STILL_NS: Final = 1_000_000_000
_DEVICE_NS: Final = 1_000_000_000
"""Minimum time without progress of a device that has work, in ns."""
_MOVES_NS: Final = 10_000_000_000
"""Time for which a rank that makes progress, say a parameter server, may serve others, in ns."""
_UNKNOWN_NS: Final = 3_000_000_000
"""Allowed wait on an overloaded host while no stack shows what a rank does, in ns."""
_BLOCKED_NS: Final = 6_000_000_000
"""Time for which a busy disk, or pages read anew, may block a rank, in ns."""
_IMPORTS_NS: Final = 10_000_000_000
_MAX_THREADS: Final = 3
_MAX_HANDLED: Final = 2
_MAKES: Final = ("init_process_group", "new_group", "split_group", "init_device_mesh")
_PHASES: Final[dict[str, Doing]] = {
    "data": "loading", "forward": "forward", "backward": "backward", "optimizer": "optimizer",
    "pipeline": "pipeline", "start-up": "start-up",
}  # fmt: skip


def absence(view: View, rank: int, since_ns: int, group: GroupDef | None = None) -> Absence:
    """Return the activity of a rank that others wait for in an op of ``group``."""
    process, now = view.ranks[rank], seen(view, rank)
    end = view.proc_end(process)
    if end is not None:
        gone: Doing = "ended"
        if end[1] in ("killed", "lost"):
            gone = "killed" if end[1] == "killed" else "lost"
        last, last_at = last_op(view, rank)
        return Absence(gone, code=process.exit_code, last=last, last_at=last_at)
    if process.leaving_ns is not None and process.leaving_ns <= view.t_ns:
        return Absence("left")
    where, at = whole_place(now.frames), activity(now.frames)
    if group is not None and (by := destroyed(view, rank, (group.epoch, group.key))) is not None:
        return Absence("destroyed", by or where, name=by)
    if now.stopped:
        return Absence("stopped" if now.os_state == "T" else "traced", where, pid=process.pid)
    if at == "pdb" or at == "prompt":
        return Absence(at, where)
    if now.gil_held and is_cut_off(view, process.host):
        return Absence("cut off", name=process.host)
    if now.gil_held or now.inside == "gil":
        idle = now.cpu is not None and now.cpu < IDLE_CORES
        during = "action" if now.action else _PHASES.get(now.phase, "unknown")
        last, last_at = (NO_OP, "") if where else last_op(view, rank)
        return Absence(
            "gil", where, name=now.action, silent_ns=now.silent_ns, asleep=idle, during=during,
            last=last, last_at=last_at,
        )  # fmt: skip
    if now.os_state == "D":
        return Absence("kernel", where)
    stands = standing(view, rank)
    if stands is not None and view.t_ns - stands.since_ns >= _DEVICE_NS:
        silent = view.t_ns - stands.since_ns
        return Absence("device", name=stands.name, step=stands.step, silent_ns=silent)
    doing: Doing = at or ("action" if now.action else _PHASES.get(now.phase, "unknown"))
    if doing == "unknown" and where:
        doing = "code"
    progresses = not now.frames and view.t_ns - now.moved_ns < _STILL_NS
    frames = ran(view, rank, since_ns) if progresses else now.frames
    if progresses and frames and doing != "action":  # phases of a loop come and go
        doing, where = "runs", whole_place(frames)
    return Absence(
        doing, where, name=now.action, lock=now.lock, caller=caller(frames) or "",
        asleep=now.cpu is not None and now.cpu < IDLE_CORES and now.os_state == "S",
        progresses=progresses,
        thread=_other_than_main(now),
        threads=other_threads(now), pid=process.pid, rank=rank,
        blocking=_blocking(view, now),
    )  # fmt: skip


def destroyed(view: View, rank: int, key: GroupKey) -> str | None:
    """Return the place where a rank destroyed a group that it was in (empty: not known); None: it
    did not, or it has made groups since that may replace this one."""
    process = view.ranks[rank]
    own = process.group_ids(key)
    known = [(i, op) for i, op in process.ops.items() if op.op == "destroy_process_group"]
    ids = [i for i, op in known if op.tag in own or not op.reduce]  # of no group: of all
    table, visible = view.rows(process, "call")
    whole = (table.col("flags")[:visible] & int(Flag.FAILED)) == 0
    rows = np.flatnonzero(np.isin(table.col("name_id")[:visible], ids) & whole)
    if not len(rows):
        return None
    since, used = int(table.col("t0_ns")[rows[-1]]), 0
    for name in ("issue", "issue_p2p"):
        table, visible = view.rows(process, name)
        of = process.on_group(table.col("group_id")[:visible], key)
        used = max(used, int(table.col("t0_ns")[:visible][of].max(initial=0)))
    table, visible = view.rows(process, "call_begin")
    newer = table.col("name_id")[:visible][table.col("t0_ns")[:visible] > since]
    made = any(process.ops[i].op in _MAKES for i in newer.tolist() if i in process.ops)
    if made or not 0 < used < since:
        return None
    at, first = first_place(view, rank, since)
    return at if at and first else ""


def last_op(view: View, rank: int) -> tuple[Label, str]:
    """Return (last op of a rank, place where it issued the first op of that signature)."""
    found: list[Issue] = []
    for name in ("issue", "issue_p2p"):
        _, visible = view.rows(view.ranks[rank], name)
        found += issues_at(view, rank, name, np.arange(max(0, visible - 1), visible))
    if not found:
        return NO_OP, ""
    newest = max(found, key=lambda issue: issue.t0_ns)
    label = f"{newest.op.op} {group_label(view, newest.group)} #{newest.seq}"
    return Label(label), first_place(view, rank, newest.t0_ns)[0] or ""


def left_out(view: View, rank: int) -> LeftOut | None:
    """Return the counts which show that a missing rank left out a collective in some step; None if
    it may have had fewer steps, as with uneven data."""
    rows = [row for row in newest_collectives(view) if rank in row.missing]
    if not rows:
        return None
    of = [row for row in rows if row.key == rows[0].key]
    waiting = {other for row in of for other in row.issued if other in view.ranks}
    ended = {one: last_step_rows(view, view.ranks[one], 1)[-1:] for one in (rank, *sorted(waiting))}
    steps = {one: newest[0][0] for one, newest in ended.items() if newest}
    if len(steps) < len(ended) or steps.pop(rank) <= max(steps.values(), default=0):
        return None
    numbers = [row.seq for row in of]
    group = Label(of[0].label or of[0].axis or of[0].group)
    return LeftOut(group, min(numbers), max(numbers) + 1)


def unsent(view: View, waiting: Collection[int]) -> list[P2PRow]:
    """Return the messages that ranks were to receive and known ones never sent, the first first."""
    rows = [row for row in newest_messages(view) if row.send_ns is None and row.dst in waiting]
    return sorted((row for row in rows if row.src in view.ranks), key=lambda row: row.order)


def with_handled(view: View, found: Candidate) -> Candidate:
    """Return the candidate with the exceptions that its culprits are just handling, except those
    that other ranks handle too: a program may do all its work in an ``except``."""
    if not any(seen(view, rank).handles for rank in found.culprits if rank in view.ranks):
        return found
    by: dict[str, list[int]] = {}
    for rank in view.ranks:
        if what := seen(view, rank).handles:
            by.setdefault(what, []).append(rank)
    usual = {what.partition(":")[0] for what in by if not {*by[what]} <= {*found.culprits}}
    told = ((what, tuple(of)) for what, of in by.items() if what.partition(":")[0] not in usual)
    return replace(found, handled=tuple(told)[:_MAX_HANDLED])


def _blocking(view: View, now: Seen) -> Blocking | None:
    """Return the system call that the rank was seen in at its place; None: none was seen."""
    where, sampled = place(now.frames), samples(view, now.rank, now.moved_ns)
    return next((one.blocking for one in sampled if one.place == where), None)


def other_threads(now: Seen) -> tuple[tuple[str, str], ...]:
    """Return (thread or task, place) of a rank's others than the one that it stands in."""
    places = ((thread_text(t.thread, t.task_of), place(t.frames)) for t in now.threads[1:])
    return tuple((name, at) for name, at in places if at)[:_MAX_THREADS]


def _other_than_main(now: Seen) -> str:
    first = now.threads[0] if now.threads else None
    return (
        thread_text(first.thread, first.task_of) if first and first.thread != "MainThread" else ""
    )


def activity_ns(view: View, rank: int, found: Absence) -> float:
    """Return how long the rank's activity may take, in ns; 0: it should have come at once."""
    if found.fault or found.doing == "device":  # a host's load slows no device
        return 0
    now = seen(view, rank)
    if found.doing == "kernel":
        return _BLOCKED_NS
    starved = not now.frames and now.os_state == "R"  # runnable, without a stack
    usual = 0
    if found.progresses or starved:
        usual = _MOVES_NS
    elif found.doing == "checkpoint":
        usual = 0 if found.asleep else _FILES_NS
    elif found.doing == "importing" and found.in_lock:  # for the import of another thread
        usual = 0
    elif found.doing == "importing" or (found.doing == "compiling" and not found.asleep):
        usual = _IMPORTS_NS
    if not now.source and now.overloaded:
        usual = max(usual, _UNKNOWN_NS)
    return usual * now.slowdown
