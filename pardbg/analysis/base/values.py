"""What the analysis says, as frozen values: the seam between analysis and everything that shows.

All times are hub-clock monotonic nanoseconds. Fractions are 0..1. ``None`` means not known, which
is shown as such; 0 is a rank, a stage and a microbatch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pardbg.analysis.base.control import Breakpoint as Breakpoint
from pardbg.analysis.base.control import ControlView as ControlView
from pardbg.analysis.base.losses import NotFinite
from pardbg.analysis.base.matched import Arrival as Arrival
from pardbg.analysis.base.matched import CollectiveRow as CollectiveRow
from pardbg.analysis.base.matched import P2PRow as P2PRow
from pardbg.analysis.base.matched import Verdict as Verdict
from pardbg.analysis.base.run import RunInfo as RunInfo

Cause = Literal["warmup", "dependency", "communication", "host", "cooldown"]
CAUSES: tuple[Cause, ...] = ("warmup", "dependency", "communication", "host", "cooldown")

PlanSource = Literal["schedule", "corrected", "observed", "chain"]
"""Where a pipeline's plan is from: the schedule object, that with a known error put right, or
nowhere: then its rows are observed actions, or phases of ranks that hand a batch on."""
RankStateName = Literal["running", "waiting", "held", "stale", "lost", "ended", "unknown"]


@dataclass(frozen=True, slots=True)
class RankNow:
    """One row of the overview."""

    rank: int
    proc: str
    host: str
    pid: int
    stages: tuple[int, ...]
    """Pipeline stages on this rank; empty without a pipeline."""
    state: RankStateName
    now: str
    """What it does, in words: ``0F5``, ``held before 2F4``, ``recv 2→3 mb4``, ``forward``."""
    since_ns: int | None
    step: int | None
    step_ns: tuple[int, ...]
    """Of its last 32 steps, oldest first, without those that the debugger held."""
    compute_fraction: float | None
    wait_fraction: float | None
    comm_fraction: float | None
    """Of the last step: computing, waiting for others, data moving."""
    memory_bytes: int | None
    memory_history: tuple[int, ...]
    lag_ns: int | None
    """Age of the newest record the viewer has, by the hub's clock."""
    dropped_records: int
    agent_overhead: float | None
    clock_error_ns: int | None
    """Uncertainty of its clock against the hub's; 0 = the same clock."""
    node: int | None = None
    """torchrun's group rank: which launcher started it. Two may be on one host."""
    metrics: tuple[tuple[str, float], ...] = ()
    """(name, newest value) of what the program logged, but the loss."""


@dataclass(frozen=True, slots=True)
class ActionSpan:
    """One pipeline compute action as it ran. Text form ``2B5`` = stage 2, backward, mb 5."""

    rank: int
    stage: int
    kind: str
    """F, B, I, W, UNSHARD, RESHARD or REDUCE_GRAD."""
    microbatch: int
    t0_ns: int
    t1_ns: int | None
    """None: still running at the cursor."""

    @property
    def text(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch if self.microbatch >= 0 else ''}"


@dataclass(frozen=True, slots=True)
class Idle:
    """A stretch in which a rank computed nothing, and why."""

    rank: int
    t0_ns: int
    t1_ns: int
    cause: Cause
    producer: str | None
    """For dependency and communication: the action waited for, ``2B0``."""
    producer_rank: int | None


@dataclass(frozen=True, slots=True)
class PipelineRank:
    """A rank's row in one pipeline step. busy + sum(idle) == window, exactly."""

    rank: int
    stages: tuple[int, ...]
    plan: tuple[str, ...]
    """Planned compute actions in order, text form; ``""`` is a planned bubble."""
    actions: tuple[ActionSpan, ...]
    idles: tuple[Idle, ...]
    busy_ns: int
    idle_ns: dict[Cause, int]
    in_flight: int
    """At the cursor."""
    max_in_flight: int
    in_flight_bound: int | None
    activation_bytes: int | None
    """In-flight microbatches times the sampled bytes per microbatch, at the cursor."""
    next_action: str | None
    """The planned action after the last one seen (live or at the cursor)."""
    pairs: tuple[tuple[str, str], ...] = ()
    """(forward, backward) that the plan has as one overlapped action, as DualPipeV does."""


@dataclass(frozen=True, slots=True)
class PipelineStep:
    step: int
    complete: bool
    t0_ns: int
    t1_ns: int
    """Window of the step so far: first compute begin to last compute end over all ranks."""
    bubble_fraction: float
    implied_fraction: float | None
    bound_fraction: float | None
    ranks: tuple[PipelineRank, ...]
    held_ns: int = 0
    """Held out of it: the window ended so much later. Not 0: all times are as without holds."""

    @property
    def window_ns(self) -> int:
        return self.t1_ns - self.t0_ns


@dataclass(frozen=True, slots=True)
class PipelineView:
    schedule: str
    group: str
    num_ranks: int
    num_stages: int
    num_microbatches: int
    num_virtual: int
    paced: bool
    step: PipelineStep | None
    """The step at the cursor (running or last)."""
    last_complete: PipelineStep | None
    """The newest complete step at or before the cursor, for figures that must not jump."""
    bubble_history: tuple[tuple[int, float], ...]
    """(step, bubble_fraction) of the last complete steps, at most 64."""
    implied_history: tuple[tuple[int, float], ...] = ()
    """(step, implied_fraction) of the same steps, where it is known."""
    source: PlanSource = "schedule"
    index: int = 0
    """Which of ``Snapshot.pipelines`` it is."""


@dataclass(frozen=True, slots=True)
class PipelineName:
    """One of the run's pipelines, to choose among."""

    label: str
    """Its place on the device mesh, ``dp=0 tp=1``, or its ranks."""
    ranks: tuple[int, ...]
    bubble_fraction: float | None
    """Of its newest complete step at the cursor."""


@dataclass(frozen=True, slots=True)
class GroupView:
    key: str
    name: str
    axis: str | None
    ranks: tuple[int, ...]
    backend: str
    num_ops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Edge:
    """Directed traffic between two ranks."""

    src: int
    dst: int
    bytes: int
    rate_bps: float
    """Bytes per second over the last window (``TrafficView.window_ns``)."""
    source: Literal["observed", "modelled"]
    num_ops: int
    active: bool
    """An op is in flight on it at the cursor."""
    label: str = ""
    """What its newest message was, as ``P2PRow.label``."""


@dataclass(frozen=True, slots=True)
class Move:
    """One message of a collective that is written out in sends and receives."""

    src: int
    dst: int
    chunk: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RingStep:
    """Where an algorithm of many messages is: the step of the rank that is furthest behind."""

    phase: str
    part: int
    parts: int
    moves: tuple[Move, ...]
    """What each rank sent or sends in it, by sender."""
    behind: int
    """That rank."""
    slowest: tuple[int, int] | None
    """The edge whose messages take longest from both sides' issue to completion (median)."""
    slowest_bps: float | None  # of that edge, while a message is on it


@dataclass(frozen=True, slots=True)
class TrafficView:
    window_ns: int
    edges: tuple[Edge, ...]
    groups: tuple[GroupView, ...]
    ops: tuple[tuple[str, str, int, int, float | None], ...]
    """(group, op, number, bytes, median busbw GB/s) per kind of op, largest first."""
    ring: RingStep | None = None


@dataclass(frozen=True, slots=True)
class MemoryRow:
    rank: int
    parameters_bytes: int | None
    gradients_bytes: int | None
    optimizer_bytes: int | None
    activations_bytes: int | None
    activations_peak_bytes: int | None
    unattributed_bytes: int | None
    total_bytes: int | None
    """Allocated on the device, else resident set size."""
    total_kind: str
    """``allocated`` or ``rss``."""
    expected_bytes: int | None
    """Of parameters, gradients and optimizer state between steps, when they are counted."""
    history: tuple[tuple[int, int], ...]
    """(t_ns, total bytes), at most 256."""
    gathered_peak_bytes: int | None = None
    """Where parameters are sharded: the most that lay whole at once in the last step."""
    activations_least_bytes: int | None = None
    """The least that a sampled forward kept: below the newest where some steps recompute."""


@dataclass(frozen=True, slots=True)
class Stretch:
    t0_ns: int
    t1_ns: int


@dataclass(frozen=True, slots=True)
class UnitRow:
    """Parameters that are gathered and thrown away together (a unit of fully_shard)."""

    name: str
    bytes: int
    """Of its whole parameters."""
    fetching: tuple[Stretch, ...]
    """From the all_gather's issue to the copied-out parameters."""
    whole: tuple[Stretch, ...]
    reducing: tuple[Stretch, ...]
    """Gradients reduced and scattered."""


@dataclass(frozen=True, slots=True)
class ShardingView:
    """One rank's last complete step of fully sharded training."""

    rank: int
    step: int
    t0_ns: int
    t1_ns: int
    phases: tuple[tuple[str, int, int], ...]
    """(name, t0, t1)"""
    units: tuple[UnitRow, ...]
    """In the order of their first use."""
    curve: tuple[tuple[int, int], ...]
    """(t_ns, bytes of whole parameters from then on)"""
    peak_bytes: int
    whole_bytes: int
    """All units together."""


@dataclass(frozen=True, slots=True)
class StepRow:
    step: int
    duration_ns: int
    """Longest over ranks."""
    loss: float | None
    phases: dict[str, int]
    """Mean ns per phase over ranks."""


@dataclass(frozen=True, slots=True)
class LaneSpan:
    """One box of the timeline."""

    t0_ns: int
    t1_ns: int
    label: str
    style: str
    """A render style token: ``action.F``, ``phase.forward``, ``comm.all_reduce``, ``wait``."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where to look: a moment, a rank and a screen."""

    t_ns: int
    rank: int | None
    screen: str
    """A screen's name: ``timeline``, ``collectives``, ``pipeline`` …"""
    lane: str = ""
    """The timeline's lane, where one is meant."""
    op: str = ""
    """The op in words, where one is meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong. ``text`` says what; ``advice`` what to try."""

    kind: str
    """A stable identifier, ``missing-rank``; listed in docs/findings.md."""
    severity: Literal["error", "warning", "info"]
    ranks: tuple[int, ...] = ()
    culprits: tuple[int, ...] = ()
    """Ranks that caused it; never those that only wait."""
    group: str | None = None
    seq: int | None = None
    where: str | None = None  # ``train.py:88 in forward``
    t_ns: int
    text: str
    advice: str = ""
    cost_ns_per_step: int | None = None
    """What a step would save without it, where that can be said."""
    evidence: Evidence | None = None
    first_ns: int | None = None
    """Since when it is so (``t_ns`` is when it was last seen); None: the same."""


@dataclass(frozen=True, slots=True)
class Hang:
    """What holds ranks up: a finding about a standstill, as every page says it first."""

    kind: str
    """Of the finding."""
    severity: Literal["error", "warning", "info"]
    culprits: tuple[int, ...]
    waiting: tuple[int, ...]
    op: str
    where: str | None
    """Place in the code where the (first) culprit stands."""
    since_ns: int
    until_ns: int | None
    """When the job fell apart; None: it still hangs."""
    text: str


@dataclass(frozen=True, slots=True)
class RankStack:
    """A rank's main thread as it stood when ranks got on no more."""

    rank: int
    t_ns: int
    frames: tuple[tuple[str, int, str], ...]
    """(file, line, function), outermost first."""
    holds: bool
    """The rank has done nothing since."""


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
    """Of the newest step that has one; NaN and infinity stay what they are."""
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
    stacks: tuple[RankStack, ...] = ()
    """Taken at the newest standstill, by rank."""
