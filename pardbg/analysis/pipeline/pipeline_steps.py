"""A pipeline's steps as of the cursor: measured and planned, bubble by cause, what is in flight."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from pardbg.analysis.base.asof import MEMO_MAX, View, per_store
from pardbg.analysis.base.holds import was_held
from pardbg.analysis.base.intervals import Interval, clip, total
from pardbg.analysis.base.leads import host_bound
from pardbg.analysis.base.spans import p2p_waits
from pardbg.analysis.base.times import are_launches, times
from pardbg.analysis.pipeline.dependencies import COMPUTE
from pardbg.analysis.pipeline.idle import Evidence, busy_intervals, calls, receives, split
from pardbg.analysis.pipeline.implied import bound_fraction, implied_fraction
from pardbg.analysis.pipeline.in_flight import in_flight, in_flight_bound, kept_bytes
from pardbg.analysis.pipeline.pipelines import Layout, launches, layouts, running_action, step_rows
from pardbg.analysis.pipeline.play import uniform_slots
from pardbg.analysis.pipeline.unheld import LaidOut, lay_out_unheld
from pardbg.analysis.pipeline.values import (
    ActionSpan,
    Cause,
    Idle,
    PipelineRank,
    PipelineStep,
    PipelineView,
    PlanSource,
    causes_of,
)

HISTORY = 64
_KEPT_ACTIONS = 40_000
"""Maximum number of actions in the steps that are kept of a live run: some 16 MiB."""
_MOST_SIMULATED = 64
"""Ranks up to which the implied bubble is worked out for each step of the history."""
_LOOK_BACK = 8
"""Steps to look back for a complete one."""


def pipeline_view(
    view: View, rank: int | None = None, history: int = HISTORY
) -> PipelineView | None:
    """Return the pipeline of ``rank`` at the cursor, else the first; None where no rank runs one.
    ``history``: number of steps whose bubbles come with it."""
    found = layouts(view)
    if not found:
        return None
    index = next((i for i, layout in enumerate(found) if rank in layout.ranks), 0)
    layout = found[index]
    newest = newest_step(view, layout)
    current = None if newest is None else pipeline_step(view, layout, newest)
    plan, bubbles = layout.plan, _history(view, layout, newest, history)
    launched = {}
    # Without its holds it is not known when the hosts had launched it.
    if current is not None and not current.held_ns and times(view) == "device":
        launched = launches(view, layout, (current.t0_ns, view.t_ns))
    return PipelineView(
        schedule=plan.schedule if plan is not None else "",
        group=_group_name(view, layout),
        num_ranks=len(layout.ranks),
        num_stages=layout.num_stages,
        num_microbatches=layout.num_microbatches,
        num_virtual=plan.num_virtual if plan is not None else 1,
        paced=bool((plan is not None and plan.paced) or view.store.notes.get("paced")),
        predicted=str(view.store.notes.get("predicted", "")),
        times=times(view),
        launches=launched,
        step=current,
        last_complete=_last_complete(view, layout, current),
        bubble_history=bubbles,
        implied_history=_implied_history(view, layout, bubbles),
        source=_source(layout),
        index=index,
    )


def _source(layout: Layout) -> PlanSource:
    if layout.chain is not None:
        return "chain"
    if not layout.planned or layout.plan is None:
        return "observed"
    return "corrected" if layout.plan.source == "corrected" else "schedule"


def _group_name(view: View, layout: Layout) -> str:
    for (_, key), group in view.store.groups.items():
        if key == layout.group:
            return group.axis or group.name
    return layout.group


def newest_step(view: View, layout: Layout) -> int | None:
    """Return the newest step with an action begun at the cursor."""
    running = (running_action(view, rank) for rank in layout.ranks)
    steps = [last_step(view, layout), *(one[0] for one in running if one is not None)]
    return max((step for step in steps if step is not None), default=None)


def last_step(view: View, layout: Layout) -> int | None:
    """Return the newest step of which an action is over."""
    steps = []
    for rank in layout.ranks:
        process = view.ranks.get(rank)
        if process is not None:
            table, visible = view.rows(process, layout.table)
            if visible:
                steps.append(int(table.col("step")[visible - 1]))
    return max(steps, default=None)


def pipeline_step(view: View, layout: Layout, step: int) -> PipelineStep | None:
    """Return one step as of the cursor. Complete steps are kept: they do not change any more."""
    seen: dict[Hashable, PipelineStep | None] = view.local.setdefault("pipeline steps", {})
    if (layout.key, step) not in seen:
        seen[layout.key, step] = _kept_step(view, layout, step)
    return seen[layout.key, step]


def _kept_step(view: View, layout: Layout, step: int) -> PipelineStep | None:
    actions = max(1, 2 * layout.num_microbatches * layout.num_stages)
    most = min(MEMO_MAX, max(HISTORY, _KEPT_ACTIONS // actions))
    cache = view.memo("pipeline", most if view.store.live else MEMO_MAX)
    key = (layout.key, step, _signature(view, layout, step))
    known: PipelineStep | None = cache.get(key)
    if known is not None and known.t1_ns <= view.t_ns:
        return known
    made = _make_step(view, layout, step)
    if made is not None and made.complete:
        cache[key] = made
    return made


def _signature(view: View, layout: Layout, step: int) -> tuple[int, ...]:
    """Return the row counts that a step's figures rest on: equal counts, equal figures."""
    counts = []
    for rank in layout.ranks:
        process = view.ranks.get(rank)
        for name in (layout.table, "wait", "done_p2p", "issue_p2p", "held"):
            if process is None:
                counts.append(-1)
                continue
            counts.append(len(view.step_rows(process, name, step)[1]))
        counts.append(_ended_step(view, rank, step))  # without a plan, this completes it
    return tuple(counts)


def _make_step(view: View, layout: Layout, step: int) -> PipelineStep | None:
    rows = step_rows(view, layout, step)
    window = _window(rows, view.t_ns)
    if window is None:
        return None
    complete = _is_complete(view, layout, rows, step)
    laid = lay_out_unheld(view, rows, layout.num_stages, window)
    if laid is not None:
        rows, window = laid.rows, (window[0], laid.now_ns)
    ended = {
        s.text: (s.t1_ns, rank) for rank, row in rows.items() for s in row if s.kind in COMPUTE
    }
    slots = _slots(view, layout)
    ranks = tuple(
        _rank_row(
            view, layout, rows[rank], window, complete,
            _evidence(view, layout, rank, window, step, ended, laid), slots.get(rank),
        )
        for rank in layout.ranks if _is_recorded(view, layout, rank, rows[rank], step)
    )  # fmt: skip
    if not ranks:
        return None  # a part of a recording begins in the step: no rank's records are whole
    length = window[1] - window[0]
    busy, launches = sum(row.busy_ns for row in ranks), are_launches(view)
    return PipelineStep(
        step=step,
        complete=complete,
        t0_ns=window[0],
        t1_ns=window[1],
        bubble_fraction=None if launches else _bubble(busy, len(ranks), length),
        implied_fraction=None if launches else implied_fraction(layout, rows),
        bound_fraction=bound_fraction(layout),
        ranks=ranks,
        held_ns=0 if laid is None else laid.held_ns,
    )


def _evidence(
    view: View,
    layout: Layout,
    rank: int,
    window: Interval,
    step: int,
    ended: Mapping[str, tuple[int | None, int]],
    laid: LaidOut | None,
) -> Evidence:
    """Return the evidence for a rank's idle time. Receives and waits of a step that was held have
    the times of the holds, so there only the ways of the laid-out step count."""
    if laid is not None:
        ways = laid.ways.get(rank, ())
        return Evidence(rank, layout.num_stages, ended, layout.stage_rank, waits=ways)
    return Evidence(
        rank=rank,
        num_stages=layout.num_stages,
        ended=ended,
        stage_rank=layout.stage_rank,
        waits=p2p_waits(view, rank, window),
        receives=receives(view, rank, step),
        calls=calls(view, rank, step, layout.num_stages),
        host_bound=host_bound(view, rank, window),
    )


def _bubble(busy_ns: int, num_ranks: int, window_ns: int) -> float:
    return 1.0 - busy_ns / (num_ranks * window_ns) if window_ns > 0 else 0.0


def _window(rows: Mapping[int, Sequence[ActionSpan]], t_ns: int) -> Interval | None:
    compute = [s for row in rows.values() for s in row if s.kind in COMPUTE]
    if not compute:
        return None
    begin = min(s.t0_ns for s in compute)
    end = max(max(t_ns, s.t0_ns) if s.t1_ns is None else s.t1_ns for s in compute)
    return begin, end


def _is_complete(
    view: View, layout: Layout, rows: Mapping[int, Sequence[ActionSpan]], step: int
) -> bool:
    """Return whether a step is over: all planned actions ended, or else (no plan, records lost)
    every rank ended the step.

    The first step of a chain is never complete: the begin of its first forward was not seen. With a
    plan, neither is one that a process did not end before its own end: an evaluation after the
    training, or a step that was cut off.
    """
    if any(s.t1_ns is None for row in rows.values() for s in row):
        return False
    if layout.chain is not None and any(
        _kinds(row, "F") < _kinds(row, "B") for row in rows.values()
    ):
        return False
    if layout.planned and all(
        sum(s.kind in COMPUTE for s in rows[rank]) >= len(layout.order[rank])
        for rank in layout.ranks
    ):
        return True
    return all(_ended_step(view, rank, step, by_end=not layout.planned) for rank in layout.ranks)


def _kinds(row: Sequence[ActionSpan], kind: str) -> int:
    return sum(span.kind == kind for span in row)


def _is_recorded(
    view: View, layout: Layout, rank: int, row: Sequence[ActionSpan], step: int
) -> bool:
    """Return whether the records of a rank's step are whole. A rank with actions missing from them
    would be taken for idle; a finding names ranks with lost records."""
    process = view.ranks.get(rank)
    if process is None:
        return False
    if not process.lost(view.t_ns) and not process.missed_before:
        return True
    seen = sum(span.kind in COMPUTE for span in row)
    return seen >= max(1, len(layout.order.get(rank, ()))) or not _ended_step(view, rank, step)


def _ended_step(view: View, rank: int, step: int, by_end: bool = True) -> bool:
    """Return whether a rank ended a step; ``by_end``: or its process ended."""
    process = view.ranks.get(rank)
    if process is None or (by_end and view.proc_end(process) is not None):
        return True
    table, visible = view.rows(process, "step")
    return visible > 0 and int(table.col("step")[visible - 1]) >= step


# Ranks may each send their row.
@per_store(lambda view, layout: (layout.key, sum(map(len, layout.order.values()))))
def _slots(view: View, layout: Layout) -> Mapping[int, tuple[str, ...]]:
    if layout.plan is None:
        return {}
    return uniform_slots(layout.order, layout.num_stages)


def _rank_row(
    view: View,
    layout: Layout,
    row: Sequence[ActionSpan],
    window: Interval,
    complete: bool,
    evidence: Evidence,
    slots: tuple[str, ...] | None,
) -> PipelineRank:
    rank = evidence.rank
    begun = {span.text for span in row}
    following = next((text for text in layout.order.get(rank, ()) if text not in begun), None)
    launches = are_launches(view)
    idles = () if launches else split(evidence, row, window, None if complete else following)
    ended = sorted((s for s in row if s.t1_ns is not None), key=lambda s: s.t1_ns or 0)
    now, peak, per_stage = in_flight([(span.stage, span.kind) for span in ended])
    return PipelineRank(
        rank=rank,
        stages=layout.stages(rank),
        plan=slots or (),
        actions=tuple(row),
        idles=idles,
        busy_ns=total(clip(busy_intervals(row, window[1]), *window)),
        idle_ns={} if launches else _sum_idle(idles, causes_of(times(view))),
        in_flight=now,
        max_in_flight=peak,
        in_flight_bound=in_flight_bound(layout, rank),
        activation_bytes=kept_bytes(view, rank, per_stage),
        next_action=following,
        pairs=layout.pairs(rank),
    )


def _sum_idle(idles: Sequence[Idle], causes: Sequence[Cause]) -> dict[Cause, int]:
    sums: dict[Cause, int] = dict.fromkeys(causes, 0)
    for idle in idles:
        sums[idle.cause] += idle.t1_ns - idle.t0_ns
    return sums


def _last_complete(view: View, layout: Layout, current: PipelineStep | None) -> PipelineStep | None:
    """Return the newest complete step that was not held; if all were held, the newest."""
    if current is None:
        return None
    newest: PipelineStep | None = None
    for step in range(current.step, max(-1, current.step - 1 - _LOOK_BACK), -1):
        made = current if step == current.step else pipeline_step(view, layout, step)
        if made is None or not made.complete:
            continue
        if not made.held_ns:
            return made
        newest = newest or made
    return newest


def _history(
    view: View, layout: Layout, newest: int | None, number: int
) -> tuple[tuple[int, float], ...]:
    """Return (step, bubble) of the last complete steps that were not held."""
    if newest is None:
        return ()
    made = []
    for step in range(max(0, newest - number), newest + 1):
        bubble = step_bubble(view, layout, step)
        if bubble is not None:
            made.append((step, bubble))
    return tuple(made[-number:])


def _implied_history(
    view: View, layout: Layout, bubbles: Sequence[tuple[int, float]]
) -> tuple[tuple[int, float], ...]:
    """Return (step, implied bubble) of the same steps. Each is simulated once."""
    if len(layout.ranks) > _MOST_SIMULATED:
        return ()
    known = ((step, _implied(view, layout, step, bubble)) for step, bubble in bubbles)
    return tuple((step, implied) for step, implied in known if implied is not None)


@per_store(lambda view, layout, step, bubble: (layout.key, step, bubble))
def _implied(view: View, layout: Layout, step: int, bubble: float) -> float | None:
    """Return a step's implied bubble. ``bubble`` is in the key: more of the step may come."""
    return implied_fraction(layout, step_rows(view, layout, step))


def step_bubble(view: View, layout: Layout, step: int) -> float | None:
    """Return the bubble of a complete step without the rest of its figures; None: not complete, or
    the times are the host's of a run on a device."""
    if are_launches(view):
        return None
    cache = view.memo("bubble")
    key = (layout.key, step)
    known: tuple[int, float, object] | None = cache.get(key)
    if (
        known is not None and known[0] <= view.t_ns
        and (known[2] is None or known[2] == _record_state(view, layout, step))
    ):  # fmt: skip
        return known[1]
    if _is_under_way(view, layout, step):
        return None
    rows = step_rows(view, layout, step)
    window = _window(rows, view.t_ns)
    if window is None or not _is_complete(view, layout, rows, step):
        return None
    if was_held(view, *window):
        made = pipeline_step(view, layout, step)
        return made.bubble_fraction if made is not None else None
    busy = sum(total(clip(busy_intervals(row, window[1]), *window)) for row in rows.values())
    length = window[1] - window[0]
    bubble = _bubble(busy, len(rows), length)
    newest = newest_step(view, layout)
    if newest is not None and step < newest:
        settled = step < newest - 1  # records of the last steps may still come
        state = None if settled else _record_state(view, layout, step)
        cache[key] = (max(window[1], _all_ended_ns(view, layout, step)), bubble, state)
    return bubble


def _record_state(view: View, layout: Layout, step: int) -> object:
    """Return a value that stays equal until more of the step is recorded."""
    store = view.store
    return _signature(view, layout, step) if store.live else (store.revision, store.part)


def _is_under_way(view: View, layout: Layout, step: int) -> bool:
    """Return whether a rank has fewer rows than the step needs: quicker than to look at them."""
    for rank in layout.ranks:
        process = view.ranks.get(rank)
        if process is None or _ended_step(view, rank, step, by_end=not layout.planned):
            continue
        rows = view.step_rows(process, layout.table, step)[1] if layout.planned else ()
        if not layout.planned or len(rows) < len(layout.order[rank]):
            return True
    return False


def _all_ended_ns(view: View, layout: Layout, step: int) -> int:
    """Return when the last rank ended the step, in ns; 0: none counts steps."""
    ended = 0
    for rank in layout.ranks:
        process = view.ranks.get(rank)
        if process is not None:
            table, rows = view.step_rows(process, "step", step)
            if len(rows):
                ended = max(ended, int(table.col("t1_ns")[rows].max()))
    return ended
