"""Everything the screens show at one cursor, as one value."""

from __future__ import annotations

from typing import Final

from pardbg.analysis.answers.hang import hang_view, rank_stacks
from pardbg.analysis.answers.ranks import rank_rows
from pardbg.analysis.answers.step_times import unheld_step_rows
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.control import control_view
from pardbg.analysis.base.losses import loss_history, loss_source, not_finite
from pardbg.analysis.base.run import run_info
from pardbg.analysis.base.steps import current_step
from pardbg.analysis.base.values import Snapshot
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.comm.p2p import p2p_rows
from pardbg.analysis.comm.traffic import traffic_view
from pardbg.analysis.findings import findings
from pardbg.analysis.memory.breakdown import memory_rows
from pardbg.analysis.memory.sharding import sharding_view
from pardbg.analysis.pipeline.hand_written import why_none
from pardbg.analysis.pipeline.layout import states
from pardbg.analysis.pipeline.mesh import pipeline_names
from pardbg.analysis.pipeline.schedule import HISTORY, pipeline_view
from pardbg.store.store import Store

GLANCE: Final = 8
"""Steps of history in a snapshot that is not deep."""


def snapshot(
    store: Store, t_ns: int | None, rank: int | None = None, *, deep: bool = True
) -> Snapshot:
    """The run at ``t_ns`` (hub clock); None: at its newest time. Of several pipelines ``rank``
    says which is shown in full. Not ``deep``: without findings and most of the bubble's history,
    which take longest.

    The same store and cursor give the same value. Nothing here raises on odd data: what is not
    known is None.
    """
    view = View(store, t_ns)
    pipeline = pipeline_view(view, rank, HISTORY if deep else GLANCE)
    losses = loss_history(view)  # before the steps: theirs are among them
    steps = unheld_step_rows(view)
    rows = collectives(view)
    ranks = rank_rows(view, pipeline)
    return Snapshot(
        revision=store.revision,
        live=store.live and view.run_end is None,
        t_ns=view.t_ns,
        t_begin_ns=view.begin_ns,
        t_end_ns=view.end_ns,
        run=run_info(view),
        step=current_step(view, states(view)),
        step_ns=max((row.step_ns[-1] for row in ranks if row.step_ns), default=None),
        loss=losses[-1][1] if losses else None,
        loss_history=losses,
        loss_source=loss_source(view),
        ranks=ranks,
        pipeline=pipeline,
        steps=steps,
        collectives=rows,
        p2p=p2p_rows(view),
        traffic=traffic_view(view, rows),
        memory=memory_rows(view),
        findings=findings(view) if deep else (),
        control=control_view(view),
        dropped_records=store.lost(view.t_ns),
        unknown_records=store.unknown,
        pipelines=pipeline_names(view),
        no_pipeline="" if pipeline is not None else why_none(view),
        sharding=sharding_view(view),
        not_finite=not_finite(view, losses),
        hang=hang_view(view),
        stacks=rank_stacks(view),
    )
