"""Steps of a pipeline as of the cursor: measured and planned, bubble by cause, in flight."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from pardbg.analysis.base.asof import MEMO_MAX, View, per_store
from pardbg.analysis.base.intervals import Interval
from pardbg.analysis.base.leads import host_bound
from pardbg.analysis.base.spans import p2p_waits
from pardbg.analysis.base.times import are_launches, times
from pardbg.analysis.pipeline import values
from pardbg.analysis.pipeline.dependencies import COMPUTE
from pardbg.analysis.pipeline.idle import Evidence, calls, receives, split
from pardbg.analysis.pipeline.implied import bound_fraction, implied_fraction
from pardbg.analysis.pipeline.in_flight import in_flight, in_flight_bound, kept_bytes
from pardbg.analysis.pipeline.outlines import (
    Outline,
    begun,
    bubble,
    busy_ns,
    implied,
    is_recorded,
    newest_step,
    signature,
    step_outline,
)
from pardbg.analysis.pipeline.pipelines import Layout, launches, layouts
from pardbg.analysis.pipeline.play import uniform_slots
from pardbg.analysis.pipeline.unheld import LaidOut

HISTORY: Final = 64
"""Minimum number of steps kept for a live run."""
_KEPT_ACTIONS = 40_000
"""Maximum number of actions in the steps kept for a live run: some 16 MiB."""
_MOST_SIMULATED: Final = 64
"""Maximum number of ranks for which the implied bubble of each past step is computed."""
_LOOK_BACK: Final = 8
"""Number of steps to search back for a complete one."""


def pipeline_step(view: View, layout: Layout, step: int) -> values.PipelineStep | None:
    """Return one step as of the cursor. Complete steps are cached: they do not change any more."""
    seen: dict[Hashable, values.PipelineStep | None] = view.local.setdefault("pipeline steps", {})
    if (layout.key, step) not in seen:
        seen[layout.key, step] = _kept_step(view, layout, step)
    return seen[layout.key, step]


def _kept_step(view: View, layout: Layout, step: int) -> values.PipelineStep | None:
    actions = max(1, 2 * layout.num_microbatches * layout.num_stages)
    most = min(MEMO_MAX, max(HISTORY, _KEPT_ACTIONS // actions))
    cache = view.memo("pipeline", most if view.store.live else MEMO_MAX)
    key = (layout.key, step, signature(view, layout, step))
    known: values.PipelineStep | None = cache.get(key)
    if known is not None and known.t1_ns <= view.t_ns:
        return known
    made = _make_step(view, layout, step)
    if made is not None and made.complete:
        cache[key] = made
    return made


def _make_step(view: View, layout: Layout, step: int) -> values.PipelineStep | None:
    seen = begun(view, layout, step)
    if seen is None:
        return None
    rows, window, laid = seen.rows, seen.window, seen.laid
    ended = {
        s.text: (s.t1_ns, rank) for rank, row in rows.items() for s in row if s.kind in COMPUTE
    }
    slots = _slots(view, layout)
    ranks = tuple(
        _rank_row(
            view, layout, rows[rank], window, seen.complete,
            _evidence(view, layout, rank, window, step, ended, laid), slots.get(rank),
        )
        for rank in layout.ranks if is_recorded(view, layout, rank, rows[rank], step)
    )  # fmt: skip
    if not ranks:
        return None  # a part of a recording begins in the step: no rank's records are whole
    known = not are_launches(view)
    return values.PipelineStep(
        step=step,
        complete=seen.complete,
        t0_ns=window[0],
        t1_ns=window[1],
        bubble_fraction=bubble([row.busy_ns for row in ranks], window) if known else None,
        implied_fraction=implied_fraction(layout, rows) if known else None,
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
    """Return the evidence for a rank's idle time. Receives and waits of a held step include the
    holds, so only the transfers of the step laid out without holds count there."""
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


# Ranks may each send their row.
@per_store(lambda view, layout: (layout.key, sum(map(len, layout.order.values()))))
def _slots(view: View, layout: Layout) -> Mapping[int, tuple[str, ...]]:
    if layout.plan is None:
        return {}
    return uniform_slots(layout.order, layout.num_stages)


def _rank_row(
    view: View,
    layout: Layout,
    row: Sequence[values.ActionSpan],
    window: Interval,
    complete: bool,
    evidence: Evidence,
    slots: tuple[str, ...] | None,
) -> values.PipelineRank:
    rank = evidence.rank
    begun = {span.text for span in row}
    following = next((text for text in layout.order.get(rank, ()) if text not in begun), None)
    launches = are_launches(view)
    idles = () if launches else split(evidence, row, window, None if complete else following)
    ended = sorted((s for s in row if s.t1_ns is not None), key=lambda s: s.t1_ns or 0)
    now, peak, per_stage = in_flight([(span.stage, span.kind) for span in ended])
    return values.PipelineRank(
        rank=rank,
        stages=layout.stages(rank),
        plan=slots or (),
        actions=tuple(row),
        idles=idles,
        busy_ns=busy_ns(row, window),
        idle_ns={} if launches else _sum_idle(idles, values.causes_of(times(view))),
        in_flight=now,
        max_in_flight=peak,
        in_flight_bound=in_flight_bound(layout, rank),
        activation_bytes=kept_bytes(view, rank, per_stage),
        next_action=following,
        pairs=layout.pairs(rank),
    )


def _sum_idle(
    idles: Sequence[values.Idle], causes: Sequence[values.Cause]
) -> dict[values.Cause, int]:
    sums: dict[values.Cause, int] = dict.fromkeys(causes, 0)
    for idle in idles:
        sums[idle.cause] += idle.t1_ns - idle.t0_ns
    return sums


# -- the pipeline at the cursor


def pipeline_view(
    view: View, rank: int | None = None, history: int = HISTORY
) -> values.PipelineView | None:
    """Return the pipeline of ``rank`` at the cursor, else the first; None if no rank runs one.
    ``history``: number of steps whose bubbles are included."""
    found = layouts(view)
    if not found:
        return None
    index = next((i for i, layout in enumerate(found) if rank in layout.ranks), 0)
    layout = found[index]
    newest = newest_step(view, layout)
    current = None if newest is None else pipeline_step(view, layout, newest)
    plan, last = layout.plan, _history(view, layout, newest, history)
    launched = {}
    # For a step laid out without holds, the launch times are not known.
    if current is not None and not current.held_ns and times(view) == "device":
        launched = launches(view, layout, (current.t0_ns, view.t_ns))
    return values.PipelineView(
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
        bubble_history=tuple((one.step, one.bubble_fraction) for one in last),
        implied_history=_implied_history(view, layout, last),
        source=_source(layout),
        index=index,
    )


def _source(layout: Layout) -> values.PlanSource:
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


def _last_complete(
    view: View, layout: Layout, current: values.PipelineStep | None
) -> values.PipelineStep | None:
    """Return the newest complete step that was not held; if all were held, the newest of these."""
    if current is None:
        return None
    newest: values.PipelineStep | None = None
    for step in range(current.step, max(-1, current.step - 1 - _LOOK_BACK), -1):
        made = current if step == current.step else pipeline_step(view, layout, step)
        if made is None or not made.complete:
            continue
        if not made.held_ns:
            return made
        newest = newest or made
    return newest


def _history(view: View, layout: Layout, newest: int | None, number: int) -> list[Outline]:
    """Return the outlines of the last complete steps."""
    if newest is None:
        return []
    steps = range(max(0, newest - number), newest + 1)
    made = (step_outline(view, layout, step) for step in steps)
    return [one for one in made if one is not None][-number:]


def _implied_history(
    view: View, layout: Layout, last: Sequence[Outline]
) -> tuple[tuple[int, float], ...]:
    """Return (step, implied bubble) of these steps; each step is simulated only once."""
    if len(layout.ranks) > _MOST_SIMULATED:
        return ()
    known = ((one.step, implied(view, layout, one.step, one.bubble_fraction)) for one in last)
    return tuple((step, fraction) for step, fraction in known if fraction is not None)
