"""The snapshot: the contents of the screens at one cursor, as one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pardbg.analysis.answers.device_mesh import NO_MESH, Mesh, device_mesh
from pardbg.analysis.answers.hang import Hang, RankStack, hang_view, rank_stacks, worst_standstill
from pardbg.analysis.answers.hosts import HostNow, hosts_now
from pardbg.analysis.answers.ranks import RankNow, rank_rows
from pardbg.analysis.answers.step_times import SOON, Course, rank_courses, unheld_step_rows
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.control import ControlView, control_view
from pardbg.analysis.base.losses import HISTORY as LOSSES
from pardbg.analysis.base.losses import NotFinite, loss_history, loss_source, not_finite
from pardbg.analysis.base.run import RunInfo, run_info
from pardbg.analysis.base.steps import LAST, StepRow, current_step, stated_step
from pardbg.analysis.comm.op_rows import CollectiveRow, P2PRow
from pardbg.analysis.comm.p2p import p2p_rows
from pardbg.analysis.comm.traffic import TrafficView, traffic_view
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.hangs.newest import standing_collectives
from pardbg.analysis.memory.breakdown import MemoryRow, memory_rows
from pardbg.analysis.memory.sharding import ShardingView, sharding_view
from pardbg.analysis.pipeline.chains import why_none
from pardbg.analysis.pipeline.mesh import PipelineName, pipeline_names
from pardbg.analysis.pipeline.pipeline_steps import HISTORY, pipeline_view
from pardbg.analysis.pipeline.pipelines import states
from pardbg.analysis.pipeline.values import PipelineView
from pardbg.store.intake import to_columns
from pardbg.store.lives import Part
from pardbg.store.store import Store


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Run at one cursor. Made on the engine's thread, posted to the UI as one frozen value."""

    revision: int
    live: bool
    t_ns: int
    """Cursor in ns: the newest time in a live run, the chosen time in replay."""
    t_begin_ns: int
    t_end_ns: int
    run: RunInfo
    step: int | None
    step_ns: int | None
    """Time of the newest step in ``steps``, without holds, in ns (a rank that is ahead may have
    ended a newer one)."""
    loss: float | None
    """Loss of the newest step that has one; NaN and infinity are kept."""
    loss_history: tuple[tuple[int, float], ...]
    ranks: tuple[RankNow, ...]
    pipeline: PipelineView | None
    steps: tuple[StepRow, ...]
    """Last complete steps, as many as losses; fewer with many ranks, but at least 64."""
    collectives: tuple[CollectiveRow, ...]
    """Last 200 collectives, newest last. Like all SECTIONS empty if the viewport does not include
    them."""
    p2p: tuple[P2PRow, ...]
    traffic: TrafficView
    memory: tuple[MemoryRow, ...]
    findings: tuple[Finding, ...]
    control: ControlView
    dropped_records: int
    unknown_records: int
    pipelines: tuple[PipelineName, ...] = ()
    """All pipelines of the run in the order of their lowest ranks; ``pipeline`` is one of them."""
    no_pipeline: str = ""
    """Reason why ranks that pass messages are not a pipeline; empty: no ranks do."""
    sharding: ShardingView | None = None
    loss_source: str = ""
    """Source of the losses, as in the report's ``loss_source``."""
    not_finite: NotFinite | None = None
    """Begin and ranks of a loss that is NaN or infinite; None: the newest loss is finite."""
    hang: Hang | None = None
    """Hang at the cursor, or the hang in which the job ended; None: there is none."""
    parts: tuple[Part, ...] = ()
    """Lives and roles of a run that has several."""
    part: Part | None = None
    """Selected life or role; None: the newest life."""
    stacks: tuple[RankStack, ...] = ()
    """Stacks taken at the newest standstill, by rank."""
    courses: Mapping[int, tuple[Course, ...]] = field(default_factory=dict)
    """rank -> its recent steps, for ranks in the viewport. One of the SECTIONS."""
    hosts: tuple[HostNow, ...] = ()
    """Hosts of the run, in the same section as ``courses``."""
    mesh: Mesh = NO_MESH
    """Device mesh; without axes until a rank is there."""

    @property
    def trouble(self) -> Hang | Finding | None:
        """Return the hang, else the worst error; None: there is neither."""
        errors = (finding for finding in self.findings if finding.severity == "error")
        return self.hang or min(errors, key=lambda finding: finding.order, default=None)


PARTIAL_HISTORY: Final = 8
"""Number of steps of the bubble's history in a partial snapshot of a recording."""
MANY: Final = 128
"""Number of ranks above which rows outside the viewport are reused."""
SECTIONS: Final = frozenset(("collectives", "p2p", "traffic", "memory", "courses"))
"""Fields of a snapshot that are made only for pages that draw them."""
_BETWEEN: Final = frozenset(("courses",))
"""Sections of pages that are drawn between two snapshots of all records."""
NO_TRAFFIC: Final = TrafficView(0, (), (), ())


@dataclass(frozen=True, slots=True)
class Viewport:
    """Visible part of a snapshot."""

    ranks: frozenset[int] | None = None
    """Ranks whose rows are drawn; None: all ranks."""
    sections: frozenset[str] = SECTIONS
    """Sections that are drawn; the others stay empty."""


EVERYTHING: Final = Viewport()
THOUSANDS: Final = 2048
"""Number of ranks above which a first partial snapshot has no shares of steps."""


class _Reused:
    """Parts of the previous snapshot of many ranks that a new one reuses."""

    def __init__(
        self, view: View, viewport: Viewport, before: Snapshot | None, partial: bool
    ) -> None:
        num_ended = view.memo("steps ended")
        now = num_ended[view.revision, view.t_ns] = int(view.all("step").counts.sum())
        self.before = before if before is not None and _fits(view, before) else None
        self.splits = partial and self.before is not None
        """Whether the shares of a rank's newest step are reused, too."""
        self.no_splits = partial and self.before is None and len(view.ranks) > THOUSANDS
        self._steps = False
        self.ranks: dict[int, RankNow] = {}
        self.memory: dict[int, MemoryRow] = {}
        if self.before is None:
            return
        self._steps = partial and num_ended.get((self.before.revision, self.before.t_ns)) == now
        if (drawn := viewport.ranks) is not None:
            self.ranks = {r.rank: r for r in self.before.ranks if r.rank not in drawn}
            self.memory = {r.rank: r for r in self.before.memory if r.rank not in drawn}

    def of_steps(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a field that changes only when a rank's step ends."""
        return getattr(self.before, name) if self._steps else make()


def _fits(view: View, before: Snapshot) -> bool:
    """Return whether ``before`` has the same ranks (more than MANY), and is of a live run, or of a
    recording of which nothing was read since."""
    if len(view.ranks) <= MANY:
        return False
    if before.revision != view.store.revision and not view.store.live:
        return False
    return [row.proc for row in before.ranks] == [p.proc for p in view.ranks.values()]


_STEP_ENDS: Final = 32_768


def _num_steps(view: View) -> int:
    """Return the number of steps to read: a frame costs the same for 4 ranks and for 1,024."""
    return max(LAST, min(LOSSES, _STEP_ENDS // max(1, len(view.ranks))))


def _step_ns(steps: Sequence[StepRow], ranks: Sequence[RankNow]) -> int | None:
    if steps:
        return steps[-1].duration_ns
    return max((row.step_ns[-1] for row in ranks if row.step_ns), default=None)


def snapshot(
    store: Store, t_ns: int | None, rank: int | None = None, viewport: Viewport = EVERYTHING,
    before: Snapshot | None = None, *, partial: bool = False,
) -> Snapshot:  # fmt: skip
    """Return the run at ``t_ns`` (hub clock); None: at its newest time.

    Of several pipelines the one of ``rank`` is shown in full. With many ranks, rows outside the
    viewport are reused from ``before`` while their ranks make progress. A ``partial`` snapshot
    leaves out the parts that take longest: all findings but the one that explains why live ranks
    stand, for a recording most of the bubble's history, and for THOUSANDS of ranks without
    ``before`` the shares of their steps.

    The same store, cursor and viewport give the same value, but for reused rows. Nothing here
    raises on odd data: unknown values are None.
    """
    if partial and before is not None and t_ns is None:
        moved = _between(store, viewport, before)
        if moved is not None:
            return moved
    view = View(store, t_ns)
    find = _found_at_once if partial else findings
    made = made_of(view, rank, viewport, before, find, partial=partial)
    view.done()
    return made


def _between(store: Store, viewport: Viewport, before: Snapshot) -> Snapshot | None:
    """Return ``before`` with the values that change every second, by the records of visible ranks
    and the hub's messages on all; None if that is not enough: few ranks, a pipeline, an ended
    run."""
    drawn, few = viewport.ranks, len(before.ranks) <= MANY or not viewport.sections <= _BETWEEN
    if drawn is None or few or before.pipeline is not None or not store.live:
        return None
    view = View(store, None, few=True)
    if view.run_end is not None or not _fits(view, before):
        return None
    to_columns(process for rank, process in view.ranks.items() if rank in drawn)
    known = {row.rank: row for row in before.ranks}
    others = {rank: row for rank, row in known.items() if rank not in drawn}
    rows = rank_rows(view, None, others, splits=False)
    rows = tuple(row if row is others.get(row.rank) else _with_split(row, known[row.rank])
                 for row in rows)  # fmt: skip
    stated = (stated_step(of) for of in states(view).values())
    steps = (before.step, *stated, *(row.step for row in rows))
    made = replace(
        before, revision=store.revision, t_ns=view.t_ns, t_end_ns=view.end_ns, ranks=rows,
        step=max((step for step in steps if step is not None), default=None),
        findings=_found_at_once(view), control=control_view(view), hang=hang_view(view),
        stacks=rank_stacks(view), dropped_records=store.lost(view.t_ns),
        unknown_records=store.unknown,
        hosts=hosts_now(view, rows) if "courses" in viewport.sections else (),
        courses=_courses_between(view, viewport, before),
    )  # fmt: skip
    view.done()
    return made


def _courses_between(
    view: View, viewport: Viewport, before: Snapshot
) -> Mapping[int, tuple[Course, ...]]:
    """Return the previous courses; if other ranks are visible now, new ones of these."""
    drawn = (viewport.ranks or frozenset()) & view.ranks.keys()
    if "courses" not in viewport.sections or drawn <= before.courses.keys():
        return before.courses
    return rank_courses(view, viewport.ranks, SOON)


def _with_split(row: RankNow, before: RankNow) -> RankNow:
    compute, wait, comm = before.compute_fraction, before.wait_fraction, before.comm_fraction
    return replace(row, compute_fraction=compute, wait_fraction=wait, comm_fraction=comm,
                   compute_is_bound=before.compute_is_bound)  # fmt: skip


def _found_at_once(view: View) -> tuple[Finding, ...]:
    """Return the finding that explains why live ranks stand, which must not wait for all others."""
    found = worst_standstill(view) if view.live and view.store.live else None
    return () if found is None or not found.culprits else (found,)


def made_of(
    view: View, rank: int | None, viewport: Viewport, before: Snapshot | None,
    find: Callable[[View], tuple[Finding, ...]], *, partial: bool,
) -> Snapshot:  # fmt: skip
    """Return the snapshot of a view, as `snapshot`, with the findings of ``find``."""
    reused, drawn = _Reused(view, viewport, before, partial), viewport.sections
    of_steps = reused.of_steps
    short = partial and not view.live
    pipeline = pipeline_view(view, rank, PARTIAL_HISTORY if short else HISTORY)
    losses = of_steps("loss_history", lambda: loss_history(view))  # first: steps have theirs
    steps = of_steps("steps", lambda: unheld_step_rows(view, _num_steps(view)))
    ranks = rank_rows(
        view, pipeline, reused.ranks, reuse_splits=reused.splits, splits=not reused.no_splits
    )
    shown, info = "courses" in drawn, run_info(view)
    return Snapshot(
        revision=view.store.revision,
        live=view.store.live and view.run_end is None,
        t_ns=view.t_ns,
        t_begin_ns=view.begin_ns,
        t_end_ns=view.end_ns,
        run=info,
        step=current_step(view, states(view)),
        step_ns=_step_ns(steps, ranks),
        loss=losses[-1][1] if losses else None,
        loss_history=losses,
        loss_source=of_steps("loss_source", lambda: loss_source(view)),
        ranks=ranks,
        pipeline=pipeline,
        steps=steps,
        collectives=standing_collectives(view) if "collectives" in drawn else (),
        p2p=p2p_rows(view) if "p2p" in drawn else (),
        traffic=traffic_view(view) if "traffic" in drawn else NO_TRAFFIC,
        memory=memory_rows(view, reused.memory) if "memory" in drawn else (),
        findings=find(view),
        control=control_view(view),
        dropped_records=view.store.lost(view.t_ns),
        unknown_records=view.store.unknown,
        pipelines=pipeline_names(view),
        no_pipeline="" if pipeline is not None else why_none(view),
        sharding=sharding_view(view),
        not_finite=of_steps("not_finite", lambda: not_finite(view, losses)),
        hang=hang_view(view),
        stacks=rank_stacks(view),
        courses=rank_courses(view, viewport.ranks, SOON if partial else LAST) if shown else {},
        hosts=hosts_now(view, ranks) if shown else (),
        mesh=device_mesh(view, max(info.world_size, max(view.ranks, default=-1) + 1)),
        parts=view.store.parts(),
        part=view.store.part,
    )
