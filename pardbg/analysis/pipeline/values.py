"""Values of a pipeline: actions, idle time, steps.

All times are hub-clock monotonic nanoseconds. Fractions are 0..1. ``None`` means not known, and is
shown as such; 0 is a rank, a stage and a microbatch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pardbg.analysis.base.times import Times

Cause = Literal["warmup", "dependency", "communication", "host", "launch", "cooldown"]
"""Cause of idle time. ``launch``: the host launched late, so the device had nothing queued
(host-bound). ``host``: none of the other causes."""
CAUSES: tuple[Cause, ...] = (
    "warmup", "dependency", "communication", "host", "launch", "cooldown",
)  # fmt: skip
PlanSource = Literal["schedule", "corrected", "observed", "chain"]
"""Source of a pipeline's plan: the schedule object, or a corrected form of it. Without a plan the
rows are observed actions, or phases of ranks that pass a batch on (``chain``)."""


def causes_of(times: Times) -> tuple[Cause, ...]:
    """Return the causes of idle time that times of this clock can tell apart."""
    return tuple(cause for cause in CAUSES if cause != "launch" or times == "device")


@dataclass(frozen=True, slots=True)
class ActionSpan:
    """A pipeline compute action as it ran. Text form ``2B5`` = stage 2, backward, microbatch 5."""

    rank: int
    stage: int
    kind: str
    """Kind of action: F, B, I, W, UNSHARD, RESHARD or REDUCE_GRAD."""
    microbatch: int
    t0_ns: int
    t1_ns: int | None
    """End of the action; None: it still runs at the cursor."""

    @property
    def text(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch if self.microbatch >= 0 else ''}"


@dataclass(frozen=True, slots=True)
class Idle:
    """A stretch in which a rank computed nothing, with its cause."""

    rank: int
    t0_ns: int
    t1_ns: int
    cause: Cause
    producer: str | None
    """Action that was waited for, ``2B0``; for the causes dependency and communication."""
    producer_rank: int | None


@dataclass(frozen=True, slots=True)
class PipelineRank:
    """Row of a rank in one pipeline step. busy + sum(idle) == window, exactly. In a run on a device
    with the host's times, ``busy_ns`` is that of the launches, and idle time is not known."""

    rank: int
    stages: tuple[int, ...]
    plan: tuple[str, ...]
    """Planned compute actions in order, as text; ``""`` is a planned bubble."""
    actions: tuple[ActionSpan, ...]
    idles: tuple[Idle, ...]
    busy_ns: int
    idle_ns: Mapping[Cause, int]
    in_flight: int
    """Microbatches in flight at the cursor."""
    max_in_flight: int
    in_flight_bound: int | None
    activation_bytes: int | None
    """Bytes of activations at the cursor: microbatches in flight times sampled bytes of each."""
    next_action: str | None
    """Planned action after the last one that has begun at the cursor; None: there is none."""
    pairs: tuple[tuple[str, str], ...] = ()
    """(forward, backward) pairs that the plan has as one overlapped action, as in DualPipeV."""


@dataclass(frozen=True, slots=True)
class PipelineStep:
    step: int
    complete: bool
    t0_ns: int
    t1_ns: int
    """End of the window so far: from first compute begin to last compute end over all ranks."""
    bubble_fraction: float | None
    """Bubble; None, like ``implied_fraction``, for the host's times in a run on a device."""
    implied_fraction: float | None
    bound_fraction: float | None
    ranks: tuple[PipelineRank, ...]
    held_ns: int = 0
    """Delay of the window's end by holds, in ns. If not 0, all times are as without the holds."""

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
    """Step at the cursor, running or last."""
    last_complete: PipelineStep | None
    """Newest complete step at the cursor, for figures that must not jump."""
    bubble_history: tuple[tuple[int, float], ...]
    """(step, bubble fraction) of the last complete steps, at most 64."""
    implied_history: tuple[tuple[int, float], ...] = ()
    """(step, implied fraction) of those steps for which it is known."""
    source: PlanSource = "schedule"
    index: int = 0
    """Index of the pipeline in ``Snapshot.pipelines``."""
    predicted: str = ""
    """Predicted step time, as noted by the program."""
    times: Times = ""
    """Clock of the actions' times."""
    launches: Mapping[int, tuple[ActionSpan, ...]] = field(default_factory=dict)
    """rank -> launches of actions by its host since the step began, if times are the devices'."""

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Return the causes by which the pipeline's idle time is split."""
        return causes_of(self.times)
