"""Rows of ranks: activity of each rank, its duration, and figures of the rank's last step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from pardbg.analysis.answers.step_times import (
    Split,
    last_step_split,
    read_ahead_splits,
    unheld_step_ns,
)
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.holds import was_held
from pardbg.analysis.base.leads import Ahead, ahead, waits_unseen
from pardbg.analysis.base.losses import LOSS_NAMES
from pardbg.analysis.base.run import launcher
from pardbg.analysis.base.spans import open_span
from pardbg.analysis.base.steps import last_step_rows, step_of
from pardbg.analysis.comm.ops import group_label
from pardbg.analysis.findings.registry import ended_ranks
from pardbg.analysis.memory.breakdown import history, latest_bytes
from pardbg.analysis.pipeline.mesh import newest_steps
from pardbg.analysis.pipeline.pipelines import layouts, running_action, state_at, states
from pardbg.analysis.pipeline.values import PipelineView
from pardbg.events import fields
from pardbg.store.process import Process
from pardbg.words import message
from pardbg_agent import wire

ActivityKind = Literal[
    "unknown", "not started", "in", "after", "host code", "held before", "held at", "stopped",
    "exited", "ended", "terminated", "lost",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Activity:
    """Current or last activity of a rank; `pardbg.render.frame.activity` has the words."""

    kind: ActivityKind
    what: str = ""
    """Action, op or phase; or the launcher that terminated the rank, the exception or exit code
    with which it ended, or the reason why it is lost."""
    span: str = ""
    """Innermost span of the program around the activity."""
    silent: bool = False
    """Whether the rank has shown no sign of life since."""


@dataclass(frozen=True, slots=True)
class RankNow:
    """Row of a rank in the overview, at the cursor."""

    rank: int
    proc: str
    host: str
    pid: int
    stages: tuple[int, ...]
    """Pipeline stages on the rank; empty without a pipeline."""
    state: RankStateName
    now: Activity
    since_ns: int | None
    step: int | None
    step_ns: tuple[int, ...]
    """Durations of the last 32 steps, oldest first, without those that the debugger held, in ns."""
    compute_fraction: float | None
    wait_fraction: float | None
    comm_fraction: float | None
    """Share of the last step in which data moves; the others: computing, waiting for ranks."""
    memory_bytes: int | None
    memory_history: tuple[int, ...]
    lag_ns: int | None
    """Age of the viewer's newest record of the rank, by the hub's clock, in ns."""
    dropped_records: int
    agent_overhead: float | None
    clock_error_ns: int | None
    """Uncertainty of the rank's clock against the hub's, in ns; 0: the same clock."""
    node: int | None = None
    """torchrun's group rank: number of the launcher that started it; two may share a host."""
    ahead: Ahead | None = None
    """Lead of the host over its device; None: no device times."""
    metrics: tuple[tuple[str, float], ...] = ()
    """(name, newest value) of the metrics that the program logged, without the loss."""
    cores: float | None = None
    """Number of cores that the rank's process uses; None: not known."""
    compute_is_bound: bool = False
    """Whether streams of its device may have waited unseen: it computes that much at most."""


STALE_NS: Final = 3_000_000_000
"""Silence of an agent's thread after which the rank counts as not answering, in ns."""
WAITING_NS: Final = 2_000_000
"""Time after which an open op, with nothing computed, is a wait, in ns."""
LAST_STEPS: Final = 32
_HISTORY: Final = 64
_NEWEST: Final = 64
_SIGNS: Final = ("action", "step", "phase", "issue", "issue_p2p", "memory")


def rank_rows(
    view: View,
    pipeline: PipelineView | None,
    reused: Mapping[int, RankNow] | None = None,
    *,
    reuse_splits: bool = False,
    splits: bool = True,
) -> tuple[RankNow, ...]:
    """Return each rank's row. ``reused``: rows of an earlier moment, for ranks that make progress;
    with ``reuse_splits`` a step's shares may come from the records known then; without ``splits``
    there are no shares."""
    kept = reused if reused and view.run_end is None else {}
    status, steps = states(view), newest_steps(view)
    if pipeline is not None and pipeline.last_complete is not None:
        last = pipeline.last_complete  # preferably a step without holds
        steps.update({row.rank: last for row in last.ranks if row.rank in steps})
    if splits and not reuse_splits:
        read_ahead_splits(view, kept)
    return tuple(
        row
        if (row := kept.get(rank)) and _is_well(view, process, row, status.get(process.proc))
        else _row(
            view,
            rank,
            process,
            last_step_split(view, rank, process, steps.get(rank), reuse_splits) if splits else None,
        )
        for rank, process in view.ranks.items()
    )


def _is_well(view: View, process: Process, row: RankNow, status: Mapping[str, Any] | None) -> bool:
    """Return whether the rank still makes progress, as its row says."""
    if row.state not in ("running", "waiting") or view.proc_end(process) is not None:
        return False
    if not status:
        return True
    bad = (
        status.get("held")
        or status.get("alive") is False
        or fields.text(status, "os") in ("T", "t")
    )
    return not bad and not _silent_since(view, process, status)


def _row(view: View, rank: int, process: Process, split: Split | None) -> RankNow:
    status = states(view).get(process.proc, {})
    state, now, since = _now(view, rank, process, status)
    ended = last_step_rows(view, process, LAST_STEPS)
    held = bool(ended) and was_held(view, ended[0][1], ended[-1][2])
    memory = latest_bytes(view, process)
    kind = "allocated" if memory.get("allocated", (0, 0))[0] > 0 else "rss"
    compute, wait, communication = split or (None, None, None)
    stages = next((la.stages(rank) for la in layouts(view) if rank in la.ranks), ())
    return RankNow(
        rank=rank,
        proc=process.proc,
        host=process.host,
        pid=process.pid,
        stages=stages,
        state=state,
        now=now,
        since_ns=since,
        step=step_of(view, process, status),
        step_ns=tuple(
            unheld_step_ns(view, rank, step, t0, t1) if held else t1 - t0 for step, t0, t1 in ended
        ),
        compute_fraction=compute,
        wait_fraction=wait,
        comm_fraction=communication,
        compute_is_bound=bool(ended and not stages) and waits_unseen(view, process, [ended[-1][0]]),
        memory_bytes=memory[kind][0] if kind in memory else None,
        memory_history=tuple(value for _, value in history(view, process, kind))[-_HISTORY:],
        lag_ns=_lag(view, process),
        dropped_records=process.lost(view.t_ns),
        agent_overhead=agent_overhead(view, process),
        clock_error_ns=process.clocks.at(view.t_ns).error_ns,
        node=fields.integer_or_none(process.facts, "group_rank"),
        ahead=ahead(view, rank),
        metrics=_metrics(view, process),
        cores=cores if isinstance(cores := status.get("cpu"), float) else None,
    )


def _metrics(view: View, process: Process) -> tuple[tuple[str, float], ...]:
    """Return the newest value of each metric that the program logged lately, without the loss."""
    table, visible = view.rows(process, "metric")
    part = slice(max(0, visible - _NEWEST), visible)
    ids = table.col("name_id")[part].tolist()
    newest = dict(zip(ids, table.col("a")[part].view("<f8").tolist(), strict=True))
    named = ((process.name(name_id), value) for name_id, value in newest.items())
    return tuple(sorted((name, value) for name, value in named if name not in LOSS_NAMES))


def _now(
    view: View, rank: int, process: Process, status: Mapping[str, Any]
) -> tuple[RankStateName, Activity, int | None]:
    """Return (state, activity, since when in ns) of a rank."""
    over = _ended(view, rank, process, status)
    if over is not None:
        return over
    if status.get("held"):
        held_since = fields.integer_or_none(status, "held_since_ns")
        since = held_since or fields.integer_or_none(status, "since_ns")
        following = fields.text(status, "next")
        raised = following.startswith("exception ")
        return "held", Activity("held at" if raised else "held before", following), since
    if fields.text(status, "os") in ("T", "t"):
        return "stale", Activity("stopped"), _newest_visible(view, process)
    silent = _silent_since(view, process, status)
    if silent is not None:
        return "stale", replace(_last_activity(view, process, status), silent=True), silent
    running = running_action(view, rank)
    if running is not None:
        return "running", Activity("in", running[1].text), running[1].t0_ns
    span = open_span(view, rank)
    inside = span.text if span is not None else ""
    found = recorded(view, process)
    if found is not None:
        return found.state, replace(found.activity, span=inside), found.since_ns
    open_op = fields.text(status, "open_op")
    open_since = fields.integer_or_none(status, "open_since_ns")
    if open_op and open_since is not None and view.now_ns - open_since >= WAITING_NS:
        return "waiting", Activity("in", open_op, inside), open_since
    finished = _newest_action(view, process)
    if finished is not None and finished[0] > (state_at(view)[0] or 0):
        return "running", Activity("after", finished[1]), finished[0]  # newer than STATE
    last = _last_activity(view, process, status)
    if not status and last.kind == "unknown":
        return "unknown", last, None
    return "running", replace(last, span=inside), fields.integer_or_none(status, "since_ns")


def _ended(
    view: View, rank: int, process: Process, status: Mapping[str, Any]
) -> tuple[RankStateName, Activity, int | None] | None:
    """Return (state, activity, since when in ns) of a rank that does not run; None: it does."""
    end = view.proc_end(process)
    if end is not None:
        if end[1] not in ("lost", "killed"):
            return "ended", Activity("ended", _ended_with(process, end[0])), end[0]
        if rank in ended_ranks(view):
            return "ended", Activity("terminated", launcher(view)), end[0]
        return "lost", Activity("lost", end[1]), end[0]
    run_end = view.run_end
    if run_end is not None:
        return "ended", Activity("ended"), run_end[0]
    if process.started_ns is not None and process.started_ns > view.t_ns:
        return "unknown", Activity("not started"), None
    if status.get("alive") is False:
        # The hub will report how the process ended; until then nothing bad is known.
        return "ended", Activity("exited"), state_at(view)[0]
    return None


def _ended_with(process: Process, end_ns: int) -> str:
    """Return the exception or exit code with which a rank ended; empty: it ended well."""
    raised = [f for f in process.failures if f.thread == "MainThread" and f.t_ns <= end_ns]
    code = process.exit_code
    return raised[0].types if raised else f"exit code {code}" if code else ""


def _last_activity(view: View, process: Process, status: Mapping[str, Any]) -> Activity:
    """Return the rank's activity by its STATE message, else by its newest phase or action."""
    text = fields.text(status, "what") or fields.text(status, "phase")
    if text or status:
        return Activity("in", text) if text else Activity("host code")
    action = _newest_action(view, process)
    table, visible = view.rows(process, "phase")
    if visible and (action is None or int(table.when[visible - 1]) > action[0]):
        return Activity("after", process.name(int(table.col("name_id")[visible - 1])))
    return Activity("after", action[1]) if action is not None else Activity("unknown")


def _newest_action(view: View, process: Process) -> tuple[int, str] | None:
    """Return (end in ns, text form) of the pipeline action that ended last."""
    table, visible = view.rows(process, "action")
    if not visible:
        return None
    row = visible - 1
    stage, mb = int(table.col("stage")[row]), int(table.col("microbatch")[row])
    name = process.name(int(table.col("name_id")[row]))
    text = f"{stage if stage >= 0 else ''}{name}{mb if mb >= 0 else ''}"
    return int(table.when[row]), text


def _silent_since(view: View, process: Process, status: Mapping[str, Any]) -> int | None:
    """Return the time of the rank's last sign of life, in ns, if it is older than STALE_NS."""
    heartbeat = fields.integer_or_none(status, "heartbeat_ns")
    if not heartbeat or view.now_ns - heartbeat <= STALE_NS:
        return None
    newest = max(heartbeat, _newest_visible(view, process) or 0)
    return newest if view.now_ns - newest > STALE_NS else None


def _newest_visible(view: View, process: Process) -> int | None:
    return view.newest_ns(process, _SIGNS) or None


def _lag(view: View, process: Process) -> int | None:
    """Return the age of the newest record in ns; None once no more will come."""
    if view.run_end is not None or view.proc_end(process) is not None:
        return None
    newest = _newest_visible(view, process)
    return max(0, view.now_ns - newest) if newest is not None else None


def agent_overhead(view: View, process: Process, number: int | None = LAST_STEPS) -> float | None:
    """Return the share of the last ``number`` steps (None: all) spent in the agent's hooks."""
    table, visible = view.rows(process, "step")
    lo = 0 if number is None else max(0, visible - number)
    if visible <= lo:
        return None
    spent = int(table.col("a")[lo:visible].sum())
    whole = int((table.col("t1_ns")[lo:visible] - table.col("t0_ns")[lo:visible]).sum())
    return spent / whole if whole > 0 and spent > 0 else None  # 0: not measured


RankStateName = Literal["running", "waiting", "held", "stale", "lost", "ended", "unknown"]

_LATER: Final = ("step", "phase", "action", "wait", "done", "done_p2p", "held")
_BEHIND: Final = 64
"""Number of rows searched that end after the cursor; rows are sorted by their end."""
_P2P, _SEND = int(wire.Flag.P2P), int(wire.Flag.SEND)


class Doing(NamedTuple):
    """Activity of a rank according to its records."""

    state: RankStateName
    activity: Activity
    since_ns: int


def recorded(view: View, process: Process) -> Doing | None:
    """Return the rank's activity at the cursor by its records. None at a live run's newest moment,
    and if the records end before the cursor, as the last activity may go on. A wait counts if it
    lasts WAITING_NS in all."""
    if view.live or all(view.visible(process, of) == len(process.table(of)) for of in _LATER):
        return None
    wait = _around(view, process, "wait")
    if wait is not None:
        table = process.table("wait")
        since = int(table.col("t0_ns")[wait])
        if int(table.when[wait]) - since >= WAITING_NS:
            return Doing("waiting", Activity("in", _op_text(view, process, wait)), since)
    phase = _around(view, process, "phase")
    if phase is not None:
        table = process.table("phase")
        name = process.name(int(table.col("name_id")[phase]))
        return Doing("running", Activity("in", name), int(table.col("t0_ns")[phase]))
    if not len(process.table("phase")):
        return None
    return Doing("running", Activity("host code"), _last_end(view, process))


def _around(view: View, process: Process, name: str) -> int | None:
    """Return the row whose span contains the cursor, the innermost of several; or None."""
    table, first = view.rows(process, name)
    begins = table.col("t0_ns")[first : first + _BEHIND]
    rows = np.flatnonzero(begins <= view.t_ns)
    return first + int(rows[begins[rows].argmax()]) if len(rows) else None


def _last_end(view: View, process: Process) -> int:
    """Return the end of the last phase or wait before the cursor, in ns."""
    ends = [process.started_ns or view.begin_ns]
    for name in ("phase", "wait"):
        visible = view.visible(process, name)
        if visible:
            ends.append(int(process.table(name).when[visible - 1]))
    return max(ends)


def _op_text(view: View, process: Process, row: int) -> str:
    """Return the op of a wait, such as ``all_gather dp_shard #80`` or ``recv from r3``."""
    table = process.table("wait")
    flags, peer = int(table.col("flags")[row]), int(table.col("peer")[row])
    if flags & _P2P:
        sends = bool(flags & _SEND)
        return message("send" if sends else "recv", sends, peer)
    op = process.ops.get(int(table.col("name_id")[row]))
    name = op.op if op is not None else process.name(int(table.col("name_id")[row])) or "an op"
    group = process.groups.get(int(table.col("group_id")[row]))
    where = f" {group_label(view, group)}" if group is not None else ""
    return f"{name}{where} #{int(table.col('seq')[row])}"
