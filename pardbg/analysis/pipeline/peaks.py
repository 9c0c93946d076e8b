"""Single places in a pipeline's step: the forward that made a rank's peak of activations, and the
actions that waited longest for another rank's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pardbg.analysis.pipeline.observed import ActionSpan, PipelineStep


@dataclass(frozen=True, slots=True)
class Peak:
    """The first moment at which as many microbatches as ever were in flight on the rank."""

    step: int
    action: str
    """The forward that made it, ``0F3``."""
    t_ns: int
    in_flight: tuple[str, ...]
    """Forwards whose activations were kept then, this one among them."""

    @property
    def number(self) -> int:
        return len(self.in_flight)

    @property
    def text(self) -> str:
        """Return text such as ``peak after 0F3 of step 8: 4 microbatches in flight (0F0 … 0F3)``"""
        first, last = self.in_flight[0], self.in_flight[-1]
        which = first if first == last else f"{first} … {last}"
        noun = "microbatch" if first == last else "microbatches"
        return (
            f"peak after {self.action} of step {self.step}: {len(self.in_flight)} {noun} "
            f"in flight ({which})"
        )


def peaks(step: PipelineStep) -> dict[int, Peak]:
    """Return rank -> its peak in a step."""
    return {row.rank: peak for row in step.ranks if (peak := _peak(step.step, row.actions))}


def _peak(step: int, actions: Sequence[ActionSpan]) -> Peak | None:
    """A backward split in two frees what its forward saved with W, as in ``bounds.in_flight``."""
    row = sorted((a for a in actions if a.t1_ns is not None), key=lambda a: a.t1_ns or 0)
    splits = {a.stage for a in row if a.kind == "W"}
    kept: dict[tuple[int, int], str] = {}
    best: Peak | None = None
    for a in row:
        if a.kind == "F":
            kept[a.stage, a.microbatch] = a.text
            if best is None or len(kept) > len(best.in_flight):
                best = Peak(step, a.text, a.t1_ns or 0, tuple(kept.values()))
        elif a.kind in ("B", "W") or (a.kind == "I" and a.stage not in splits):
            kept.pop((a.stage, a.microbatch), None)
    return best


@dataclass(frozen=True, slots=True)
class MicrobatchWait:
    """An action that could not begin because another rank's had not ended, over steps."""

    rank: int
    action: str
    """The action that waited, ``0B0``."""
    producer: str
    """The one it waited for, ``1B0``."""
    producer_rank: int
    wait_ns: int
    """Median of the steps in which it waited so."""
    num_steps: int


def microbatch_waits(steps: Sequence[PipelineStep]) -> tuple[MicrobatchWait, ...]:
    """Return the waits that occur in half of the steps or more, the longest first."""
    found: dict[tuple[int, str, str, int], list[int]] = defaultdict(list)
    for step in steps:
        for row in step.ranks:
            begins = sorted((a.t0_ns, a.text) for a in row.actions)
            for idle in row.idles:
                if idle.cause != "dependency" or idle.producer is None:
                    continue
                action = next((text for t0, text in begins if t0 >= idle.t1_ns), None)
                if action is not None and idle.producer_rank is not None:
                    key = (row.rank, action, idle.producer, idle.producer_rank)
                    found[key].append(idle.t1_ns - idle.t0_ns)
    made = (
        MicrobatchWait(*key, round(median(waits)), len(waits))
        for key, waits in found.items() if 2 * len(waits) >= len(steps)
    )  # fmt: skip
    return tuple(sorted(made, key=lambda wait: -wait.wait_ns))
