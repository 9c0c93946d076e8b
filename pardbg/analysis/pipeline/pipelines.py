"""Pipelines of the run: plans, ranks, stages, and the recorded actions of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.base.intervals import Interval
from pardbg.analysis.pipeline.chains import Chain, chain_spans, chains
from pardbg.analysis.pipeline.dependencies import COMPUTE, parse
from pardbg.analysis.pipeline.play import compute_plan, overlapped
from pardbg.analysis.pipeline.values import ActionSpan
from pardbg.events import fields
from pardbg.store.definitions import PlanDef
from pardbg.store.process import Process
from pardbg.store.table import Array, Table
from pardbg_agent.wire import Lane

_STATE_TIMES: Final = ("since_ns", "open_since_ns", "held_since_ns", "heartbeat_ns")
_SAME_NS = 5_000_000
"""Maximum difference between the begins of one action in a status block and in a record, in ns."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A pipeline: its plan (if known), its ranks in pipeline order, and the stages of each."""

    plan: PlanDef | None
    group: str
    ranks: tuple[int, ...]
    order: Mapping[int, list[str]]
    """rank -> planned compute actions; empty rows without a plan."""
    stage_rank: Mapping[int, int]
    num_stages: int
    num_microbatches: int
    epoch: int
    chain: Chain | None = None
    """Chain of ranks that pass a batch on by their own messages; None if a schedule ran."""

    @property
    def key(self) -> tuple[object, ...]:
        """Return the layout's identity for caches."""
        name = self.plan.schedule if self.plan is not None else ""
        return (self.epoch, self.group, name, self.ranks, self.num_stages, self.num_microbatches)

    def stages(self, rank: int) -> tuple[int, ...]:
        return tuple(sorted(s for s, r in self.stage_rank.items() if r == rank))

    @property
    def table(self) -> str:
        """Return the name of the table that holds the pipeline's actions."""
        return "phase" if self.chain is not None else "action"

    def pairs(self, rank: int) -> tuple[tuple[str, str], ...]:
        """Return the (forward, backward) pairs that the plan has as one overlapped action."""
        return () if self.plan is None else overlapped(self.plan.order.get(rank, ()))

    @property
    def planned(self) -> bool:
        return self.plan is not None and all(self.order.get(rank) for rank in self.ranks)


@per_view
def layouts(view: View) -> list[Layout]:
    """Return the run's pipelines at the cursor, in the order of their lowest ranks."""
    epoch = view.epoch
    plans = [plan for (e, _), plan in view.store.plans.items() if e == epoch and plan.ranks]
    found = [_planned(view, plan) for plan in plans]
    ran = {rank for plan in plans for rank in plan.ranks
           if rank in view.ranks and len(view.ranks[rank].table("action"))}  # fmt: skip
    found = [layout for layout in found if not ran.isdisjoint(layout.ranks)] or found
    if not found:
        sizes = view.joined("action").sizes.tolist()
        seen = tuple(rank for rank, size in zip(view.ranks, sizes, strict=True) if size)
        found = [_observed(view, seen)] if seen else _chained(view)
    return sorted(found, key=lambda layout: min(layout.ranks))


def _planned(view: View, plan: PlanDef) -> Layout:
    order = compute_plan(plan.order, plan.ranks)
    stage_rank = _stages_defined(view, plan.ranks)
    for rank, row in order.items():
        for text in row:
            action = parse(text)
            if action is not None:
                stage_rank[action.stage] = rank
    num_stages = plan.num_stages or len(stage_rank)
    return Layout(plan, plan.group, plan.ranks, order, stage_rank, num_stages,
                  plan.num_microbatches, view.epoch)  # fmt: skip


def _observed(view: View, ranks: tuple[int, ...]) -> Layout:
    stage_rank = _stages_defined(view, ranks)
    microbatches = 0
    for rank in ranks:
        table, visible = view.rows(view.ranks[rank], "action")
        tail = slice(max(0, visible - 4096), visible)
        for stage in set(table.col("stage")[tail].tolist()):
            stage_rank[stage] = rank
        if visible:
            microbatches = max(microbatches, int(table.col("microbatch")[tail].max()) + 1)
    num_stages = max(stage_rank, default=-1) + 1
    return Layout(None, "", ranks, {}, stage_rank, num_stages, microbatches, view.epoch)


def _chained(view: View) -> list[Layout]:
    return [
        Layout(None, "", chain.ranks, {}, dict(enumerate(chain.ranks)), len(chain.ranks),
               chain.num_microbatches, view.epoch, chain)
        for chain in chains(view)
    ]  # fmt: skip


def _stages_defined(view: View, ranks: tuple[int, ...]) -> dict[int, int]:
    return {
        stage: rank
        for rank in ranks
        if (process := view.ranks.get(rank)) is not None
        for stage in process.stages
    }


def step_rows(view: View, layout: Layout, step: int) -> dict[int, list[ActionSpan]]:
    """Return each rank's actions in the newest run of the schedule within a step."""
    if layout.chain is not None:
        return {rank: chain_spans(view, layout.chain, rank, step) for rank in layout.ranks}
    return last_round({rank: spans(view, rank, step) for rank in layout.ranks})


@per_view
def spans(view: View, rank: int, step: int) -> list[ActionSpan]:
    """Return a rank's actions of a step that have ended or run at the cursor, by begin."""
    process = view.ranks.get(rank)
    if process is None:
        return []
    table, rows = view.step_rows(process, "action", step)
    made = sorted(_spans(rank, process, table, rows), key=lambda span: span.t0_ns)
    # of a live run the records of a rank that has ended may be on their way
    ended = view.proc_end(process) is not None and not view.store.live
    running = (_stated if ended else running_action)(view, rank)
    if running is not None and running[0] == step:
        made.append(running[1])
    return made


def launches(view: View, layout: Layout, window: Interval) -> dict[int, tuple[ActionSpan, ...]]:
    """Return rank -> actions, of any step, whose launch its host ended in a window."""
    found = {}
    for rank in view.ranks.keys() & layout.ranks:
        table, visible = view.rows(view.ranks[rank], "launch")
        part = slice(*table.when[:visible].searchsorted(window).tolist())
        rows = np.flatnonzero(table.col("peer")[part] == Lane.COMPUTE) + part.start
        found[rank] = tuple(_spans(rank, view.ranks[rank], table, rows))
    return found


def _spans(rank: int, process: Process, table: Table, rows: Array) -> Iterator[ActionSpan]:
    columns = ("name_id", "stage", "microbatch", "t0_ns", "t1_ns")
    for name, stage, mb, t0, t1 in table.tuples(rows, *columns):
        yield ActionSpan(rank, stage, process.name(name), mb, t0, t1)


@per_view
def running_action(view: View, rank: int) -> tuple[int, ActionSpan] | None:
    """Return (step, action) of the action that runs on a rank at the cursor; None: none does."""
    process = view.ranks.get(rank)
    if process is None:
        return None
    recorded = _running_recorded(view, process, rank)
    return recorded or (_stated(view, rank) if view.proc_end(process) is None else None)


def _running_recorded(view: View, process: Process, rank: int) -> tuple[int, ActionSpan] | None:
    """Return the action whose record spans the cursor; in a replay later records are available."""
    table, visible = view.rows(process, "action")
    for row in range(visible, min(len(table), visible + 8)):
        if int(table.col("t0_ns")[row]) > view.t_ns:
            continue
        kind = process.name(int(table.col("name_id")[row]))
        if kind in COMPUTE:
            stage, mb = int(table.col("stage")[row]), int(table.col("microbatch")[row])
            span = ActionSpan(rank, stage, kind, mb, int(table.col("t0_ns")[row]), None)
            return int(table.col("step")[row]), span
    return None


def _stated(view: View, rank: int) -> tuple[int, ActionSpan] | None:
    """Return the running action that the status block names, until its record arrives; of a rank
    that has ended, the one that it was ended in."""
    process = view.ranks[rank]
    state = states(view).get(process.proc)
    if state is None or state.get("held"):
        return None
    span = stated_span(state, rank, view.t_ns)
    if span is None:
        return None
    table, visible = view.rows(process, "action")
    begun = table.col("t0_ns")[max(0, visible - 64) : visible]
    if len(begun) and int(begun.max()) >= span.t0_ns - _SAME_NS:
        return None
    return fields.integer(state, "step", 0), span


def stated_span(state: Mapping[str, Any], rank: int, t_ns: int) -> ActionSpan | None:
    """Return the running compute action that a status block names; None: it names none that had
    begun by ``t_ns``."""
    kind, since = fields.text(state, "action"), fields.integer(state, "since_ns", 0)
    stage, mb = fields.integer(state, "stage", -1), fields.integer(state, "mb", -1)
    if kind not in COMPUTE or stage < 0 or mb < 0 or not 0 < since <= t_ns:
        return None
    return ActionSpan(rank, stage, kind, mb, since, None)


def states(view: View) -> Mapping[str, Mapping[str, Any]]:
    """Return proc -> its newest STATE message as of the cursor."""
    return state_at(view)[1]


@per_view
def state_at(view: View) -> tuple[int | None, Mapping[str, Mapping[str, Any]]]:
    """Return (time of the newest STATE message, proc -> its fields), on the hub's clock."""
    t_ns, said = view.store.states.ranks(view.now_ns)
    return t_ns, {proc: _on_hub_clock(view, proc, values) for proc, values in said.items()}


def _on_hub_clock(view: View, proc: str, said: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a status block with its times moved from the process's clock to the hub's."""
    process = view.store.procs.get(proc)
    if process is None or not process.clocks:
        return said
    offset = process.clocks.offset_of
    moved = {name: t_ns + offset(t_ns, view.t_ns) for name in _STATE_TIMES
             if isinstance(t_ns := said.get(name), int) and t_ns > 0}  # fmt: skip
    return {**said, **moved}


def last_round(rows: Mapping[int, list[ActionSpan]]) -> dict[int, list[ActionSpan]]:
    """Return each rank's actions in the newest run of the schedule in a step.

    A step with gradient accumulation or an evaluation runs the schedule more than once: an action
    seen again on a rank begins another round.
    """
    split = {rank: _rounds(row) for rank, row in rows.items()}
    newest = max((len(rounds) for rounds in split.values()), default=0)
    return {
        rank: rounds[-1] if rounds and len(rounds) == newest else []
        for rank, rounds in split.items()
    }


def _rounds(row: list[ActionSpan]) -> list[list[ActionSpan]]:
    rounds: list[list[ActionSpan]] = []
    seen: set[tuple[int, str, int]] = set()
    for span in row:
        key = (span.stage, span.kind, span.microbatch)
        if not rounds or (key in seen and span.kind in COMPUTE):
            rounds.append([])
            seen = set()
        seen.add(key)
        rounds[-1].append(span)
    return rounds
