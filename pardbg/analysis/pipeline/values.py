"""Values of a pipeline: actions, idle time, steps.

All times are hub-clock monotonic nanoseconds. Fractions are 0..1. ``None`` means not known, which
is shown as such; 0 is a rank, a stage and a microbatch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pardbg.analysis.base.times import Times

Cause = Literal["warmup", "dependency", "communication", "host", "launch", "cooldown"]
"""``launch``: the device had nothing queued, as its host launched late (host-bound). ``host``: none
of the others."""
CAUSES: tuple[Cause, ...] = (
    "warmup", "dependency", "communication", "host", "launch", "cooldown",
)  # fmt: skip
PlanSource = Literal["schedule", "corrected", "observed", "chain"]
"""Source of a pipeline's plan: the schedule object, or that with a known error corrected. Without
a plan its rows are observed actions, or phases of ranks that hand a batch on (``chain``)."""


def causes_of(times: Times) -> tuple[Cause, ...]:
    """Return the causes of idle time that such times can tell apart."""
    return tuple(cause for cause in CAUSES if cause != "launch" or times == "device")


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
    """A stretch in which a rank computed nothing, and its cause."""

    rank: int
    t0_ns: int
    t1_ns: int
    cause: Cause
    producer: str | None
    """The action waited for, ``2B0``; of dependency and communication."""
    producer_rank: int | None


@dataclass(frozen=True, slots=True)
class PipelineRank:
    """A rank's row in one pipeline step. busy + sum(idle) == window, exactly. Of a run on a device
    with the host's times, ``busy_ns`` is that of the launches, and idle is not known."""

    rank: int
    stages: tuple[int, ...]
    plan: tuple[str, ...]
    """Planned compute actions in order, text form; ``""`` is a planned bubble."""
    actions: tuple[ActionSpan, ...]
    idles: tuple[Idle, ...]
    busy_ns: int
    idle_ns: Mapping[Cause, int]
    in_flight: int
    """At the cursor."""
    max_in_flight: int
    in_flight_bound: int | None
    activation_bytes: int | None
    """In-flight microbatches times the sampled bytes per microbatch, at the cursor."""
    next_action: str | None
    """The planned action after the last one that has begun at the cursor."""
    pairs: tuple[tuple[str, str], ...] = ()
    """(forward, backward) that the plan has as one overlapped action, as DualPipeV does."""


@dataclass(frozen=True, slots=True)
class PipelineStep:
    step: int
    complete: bool
    t0_ns: int
    t1_ns: int
    """Window of the step so far: first compute begin to last compute end over all ranks."""
    bubble_fraction: float | None
    """None, like ``implied_fraction``, of a run on a device with the host's times."""
    implied_fraction: float | None
    bound_fraction: float | None
    ranks: tuple[PipelineRank, ...]
    held_ns: int = 0
    """Time by which holds delayed the window's end. Not 0: all times are as without the holds."""

    @property
    def excess_fraction(self) -> float | None:
        """Return the bubble beyond the implied one; None: one of the two is not known."""
        if self.bubble_fraction is None or self.implied_fraction is None:
            return None
        return self.bubble_fraction - self.implied_fraction

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
    """The newest complete step at the cursor, for figures that must not jump."""
    bubble_history: tuple[tuple[int, float], ...]
    """(step, bubble_fraction) of the last complete steps, at most 64."""
    implied_history: tuple[tuple[int, float], ...] = ()
    """(step, implied_fraction) of the same steps, where it is known."""
    source: PlanSource = "schedule"
    index: int = 0
    """Its place in ``Snapshot.pipelines``."""
    predicted: str = ""
    """Predicted step time, as the program notes it."""
    times: Times = ""
    """The clock of the actions' times."""
    launches: Mapping[int, tuple[ActionSpan, ...]] = field(default_factory=dict)
    """rank -> when its host launched actions, since the step began; of times of devices."""

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Return the causes that its idle time is split by."""
        return causes_of(self.times)
