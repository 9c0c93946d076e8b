"""Everything the screens show at one cursor, as one value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pardbg.analysis.answers.hang import Hang, RankStack, hang_view, rank_stacks
from pardbg.analysis.answers.ranks import RankNow, rank_rows
from pardbg.analysis.answers.step_times import unheld_step_rows
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.control import ControlView, control_view
from pardbg.analysis.base.losses import NotFinite, loss_history, loss_source, not_finite
from pardbg.analysis.base.matched import CollectiveRow, P2PRow
from pardbg.analysis.base.run import RunInfo, run_info
from pardbg.analysis.base.steps import StepRow, current_step
from pardbg.analysis.comm.p2p import p2p_rows
from pardbg.analysis.comm.traffic import TrafficView, traffic_view
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.shared import Finding
from pardbg.analysis.hangs.newest import standing_collectives
from pardbg.analysis.memory.breakdown import MemoryRow, memory_rows
from pardbg.analysis.memory.sharding import ShardingView, sharding_view
from pardbg.analysis.pipeline.chains import why_none
from pardbg.analysis.pipeline.pipeline_steps import (
    HISTORY,
    PipelineName,
    pipeline_names,
    pipeline_view,
)
from pardbg.analysis.pipeline.pipelines import states
from pardbg.analysis.pipeline.values import PipelineView
from pardbg.store.lives import Part
from pardbg.store.store import Store


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything the screens show at one cursor. Made off the UI thread, posted as one value."""

    revision: int
    live: bool
    t_ns: int
    """The cursor: newest time in a live run, the chosen time in replay."""
    t_begin_ns: int
    t_end_ns: int
    run: RunInfo
    step: int | None
    step_ns: int | None
    loss: float | None
    """Loss of the newest step that has one; NaN and infinity stay what they are."""
    loss_history: tuple[tuple[int, float], ...]
    ranks: tuple[RankNow, ...]
    pipeline: PipelineView | None
    steps: tuple[StepRow, ...]
    """The last complete steps, at most 64."""
    collectives: tuple[CollectiveRow, ...]
    """The last ones, newest last, at most 200."""
    p2p: tuple[P2PRow, ...]
    traffic: TrafficView
    memory: tuple[MemoryRow, ...]
    findings: tuple[Finding, ...]
    control: ControlView
    dropped_records: int
    unknown_records: int
    pipelines: tuple[PipelineName, ...] = ()
    """All pipelines of the run, the one with the lowest rank first; ``pipeline`` is one of
    them."""
    no_pipeline: str = ""
    """Why ranks that pass messages are not taken for a pipeline; empty where none do."""
    sharding: ShardingView | None = None
    loss_source: str = ""
    """What says the losses, as in the report's ``loss_source``."""
    not_finite: NotFinite | None = None
    """Where the newest loss is NaN or infinite: since when, and whose was first."""
    hang: Hang | None = None
    """What holds ranks up at the cursor, or held them up to the end of the job."""
    parts: tuple[Part, ...] = ()
    """Lives and roles of a run that has several."""
    part: Part | None = None
    """The one that is looked at; None: the newest life."""
    stacks: tuple[RankStack, ...] = ()
    """Taken at the newest standstill, by rank."""


GLANCE: Final = 8
"""Steps of history in a snapshot that is not deep."""
FEW_STEPS: Final = 4
"""Where a live run's ranks ended more since the last snapshot, the whole one says what was in
them."""
MANY: Final = 128
"""Number of ranks above which a page shows some: a first answer is made for those."""
PARTS: Final = frozenset(("collectives", "p2p", "traffic", "memory"))
"""Fields of a snapshot that take long at many ranks and that few pages show."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What of many ranks' moment is on the screen. The rest of a snapshot that is not deep is as
    it was ``before``: for as long as somebody moves about, or until the next whole one of a run
    that goes on. Of a deep one only the rows of other ranks are."""

    before: Snapshot
    ranks: frozenset[int] | None
    """Whose rows are shown; None: all."""
    parts: frozenset[str]
    """Which of ``PARTS`` are."""


_Row = TypeVar("_Row", RankNow, MemoryRow)


def _beyond(rows: Iterable[_Row], shown: Collection[int]) -> dict[int, _Row]:
    return {row.rank: row for row in rows if row.rank not in shown}


class _Kept:
    """What of a snapshot need not be made anew."""

    def __init__(self, view: View, sight: Sight | None, deep: bool) -> None:
        self._view, self._sight, self._deep = view, sight, deep
        self._steps = view.memo("steps ended")
        ended = int(view.all("step").counts.sum())
        self._ended = self._steps[view.store.revision, view.t_ns] = ended
        if sight is not None and not self._fits(sight.before):
            self._sight = None
        self.ranks: dict[int, RankNow] = {}
        self.memory: dict[int, MemoryRow] = {}
        if self._sight is not None and (shown := self._sight.ranks) is not None:
            self.ranks = _beyond(self._sight.before.ranks, shown)
            self.memory = _beyond(self._sight.before.memory, shown)

    def _fits(self, before: Snapshot) -> bool:
        """It is of the same ranks, and of a recording that grows no more, or of a live run."""
        view = self._view
        if len(view.ranks) <= MANY:
            return False
        if before.revision != view.store.revision and not view.store.live:
            return False  # more of a recording was read
        return [row.proc for row in before.ranks] == [p.proc for p in view.ranks.values()]

    @property
    def near(self) -> bool:
        return self._sight is not None and not self._deep

    def part(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a field of ``PARTS``."""
        if self._sight is None or self._deep or name in self._sight.parts:
            return make()
        return getattr(self._sight.before, name)

    def of_steps(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a field that changes where a rank's step ends."""
        if self._sight is None or self._deep:
            return make()
        before, live = self._sight.before, self._view.live
        more = self._ended - self._steps.get((before.revision, before.t_ns), -1)
        known = not more or (live and more > FEW_STEPS * len(self._view.ranks))
        return getattr(before, name) if known else make()


def snapshot(
    store: Store,
    t_ns: int | None,
    rank: int | None = None,
    *,
    deep: bool = True,
    sight: Sight | None = None,
) -> Snapshot:
    """Return the run at ``t_ns`` (hub clock); None: at its newest time. Of several pipelines
    ``rank`` says which is shown in full. Not ``deep``: without findings and most of the bubble's
    history, which take longest; of many ranks made for what is in ``sight`` alone. Deep, ``sight``
    says of which ranks rows are made anew.

    The same store and cursor give the same value, but for what is out of sight. Nothing here
    raises on odd data: what is not known is None.
    """
    view = View(store, t_ns)
    kept = _Kept(view, sight, deep)
    pipeline = pipeline_view(view, rank, HISTORY if deep or view.live else GLANCE)
    # before the steps: theirs are among them
    losses = kept.of_steps("loss_history", lambda: loss_history(view))
    steps = kept.of_steps("steps", lambda: unheld_step_rows(view))
    rows = kept.part("collectives", lambda: standing_collectives(view))
    ranks = rank_rows(view, pipeline, kept.ranks, near=kept.near)
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
        loss_source=kept.of_steps("loss_source", lambda: loss_source(view)),
        ranks=ranks,
        pipeline=pipeline,
        steps=steps,
        collectives=rows,
        p2p=kept.part("p2p", lambda: p2p_rows(view)),
        traffic=kept.part("traffic", lambda: traffic_view(view)),
        memory=kept.part("memory", lambda: memory_rows(view, kept.memory)),
        findings=findings(view) if deep else (),
        control=control_view(view),
        dropped_records=store.lost(view.t_ns),
        unknown_records=store.unknown,
        pipelines=pipeline_names(view),
        no_pipeline="" if pipeline is not None else why_none(view),
        sharding=sharding_view(view),
        not_finite=kept.of_steps("not_finite", lambda: not_finite(view, losses)),
        hang=hang_view(view),
        stacks=rank_stacks(view),
        parts=store.parts(),
        part=store.part,
    )
