"""A pipeline's steps as they ran, as values.

All times are hub-clock monotonic nanoseconds. Fractions are 0..1. ``None`` means not known, which
is shown as such; 0 is a rank, a stage and a microbatch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pardbg.analysis.base.times import Times

Cause = Literal["warmup", "dependency", "communication", "host", "cooldown"]
CAUSES: tuple[Cause, ...] = ("warmup", "dependency", "communication", "host", "cooldown")
PlanSource = Literal["schedule", "corrected", "observed", "chain"]
"""Where a pipeline's plan is from: the schedule object, that with a known error put right, or
nowhere: then its rows are observed actions, or phases of ranks that hand a batch on."""


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
    """A rank's row in one pipeline step. busy + sum(idle) == window, exactly; where the times are
    the host's of a run on a device, ``busy_ns`` is that of its launches, and idle is not known."""

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
    bubble_fraction: float | None
    """None, as what is implied, where the times are the host's of a run on a device."""
    implied_fraction: float | None
    bound_fraction: float | None
    ranks: tuple[PipelineRank, ...]
    held_ns: int = 0
    """Held out of it: the window ended so much later. Not 0: all times are as without holds."""

    @property
    def excess_fraction(self) -> float | None:
        """Return the bubble beyond what the plan implies; None: one of them is not known."""
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
    """The newest complete step at or before the cursor, for figures that must not jump."""
    bubble_history: tuple[tuple[int, float], ...]
    """(step, bubble_fraction) of the last complete steps, at most 64."""
    implied_history: tuple[tuple[int, float], ...] = ()
    """(step, implied_fraction) of the same steps, where it is known."""
    source: PlanSource = "schedule"
    index: int = 0
    """Which of ``Snapshot.pipelines`` it is."""
    predicted: str = ""
    """What the program was predicted to take, as it says itself."""
    times: Times = ""
    """Whose clock the actions' times are."""
