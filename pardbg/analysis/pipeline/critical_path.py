"""Critical path: the chain of actions across ranks that determines a pipeline step's length.

From the last action back: the predecessor of an action is the later one of the action before it on
its rank and the action of another rank whose tensor it needs. The gap between the two is the
tensor's transfer, or the host's time. Compute, transfers and host time of the path add up to the
window exactly; if any other action were faster, the step would take as long as before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal

from pardbg.analysis.base.intervals import clip, total
from pardbg.analysis.pipeline.dependencies import COMPUTE, source
from pardbg.analysis.pipeline.values import ActionSpan, PipelineStep

Way = Literal["tensor", "host", "begin"]


@dataclass(frozen=True, slots=True)
class Link:
    """An action on the critical path."""

    rank: int
    action: str
    t0_ns: int
    t1_ns: int
    gap_ns: int
    """Gap to the predecessor on the path, in ns."""
    way: Way
    """Cause of the gap: a tensor's transfer from another rank, the host, or the step's begin."""


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """A step's critical path; compute_ns + tensor_ns + host_ns is the step's window."""

    step: int
    links: tuple[Link, ...]
    """Actions of the path, in order of time."""
    compute_ns: int
    tensor_ns: int
    host_ns: int

    @property
    def window_ns(self) -> int:
        return self.compute_ns + self.tensor_ns + self.host_ns

    def by_rank(self) -> dict[int, int]:
        """Return rank -> its compute time on the path, in ns."""
        found: dict[int, int] = defaultdict(int)
        for link in self.links:
            found[link.rank] += link.t1_ns - link.t0_ns
        return dict(found)

    @property
    def hops(self) -> int:
        """Return the number of times that the path changes ranks."""
        return sum(link.way == "tensor" for link in self.links)

    @property
    def actions(self) -> frozenset[str]:
        return frozenset(link.action for link in self.links)


def critical_path(step: PipelineStep, num_stages: int) -> CriticalPath | None:
    """Return the critical path of a complete step; None for an incomplete one."""
    if not step.complete:
        return None
    rows = {
        row.rank: [a for a in row.actions if a.kind in COMPUTE and a.t1_ns is not None]
        for row in step.ranks
    }
    for compute in rows.values():
        compute.sort(key=lambda a: a.t0_ns)
    by_text = {a.text: a for row in rows.values() for a in row}
    before = {
        (rank, following.text): action
        for rank, row in rows.items()
        for action, following in pairwise(row)
    }
    if not by_text:
        return None
    at: ActionSpan | None = max(by_text.values(), key=_end)
    links: list[Link] = []
    while at is not None:
        predecessor, way = _predecessor(at, before.get((at.rank, at.text)), by_text, num_stages)
        since = step.t0_ns if predecessor is None else _end(predecessor)
        # An action may overlap its predecessor (an overlapped pair): no gap, and no time twice.
        links.append(Link(at.rank, at.text, max(at.t0_ns, since), _end(at),
                          max(0, at.t0_ns - since), way))  # fmt: skip
        at = predecessor
    links.reverse()
    unlaunched = _unlaunched_ns(step, links)
    return CriticalPath(
        step=step.step,
        links=tuple(links),
        compute_ns=sum(link.t1_ns - link.t0_ns for link in links),
        tensor_ns=sum(link.gap_ns for link in links if link.way == "tensor") - unlaunched,
        host_ns=sum(link.gap_ns for link in links if link.way != "tensor") + unlaunched,
    )


def _unlaunched_ns(step: PipelineStep, links: Sequence[Link]) -> int:
    """Return the time in which tensors had arrived but hosts had launched nothing, in ns."""
    late = {
        row.rank: [(idle.t0_ns, idle.t1_ns) for idle in row.idles if idle.cause == "launch"]
        for row in step.ranks
    }
    gaps = ((link.rank, link.t0_ns - link.gap_ns, link.t0_ns) for link in links
            if link.way == "tensor")  # fmt: skip
    return sum(total(clip(late[rank], begin, end)) for rank, begin, end in gaps)


def _predecessor(
    action: ActionSpan, own: ActionSpan | None, by_text: Mapping[str, ActionSpan], num_stages: int
) -> tuple[ActionSpan | None, Way]:
    """Return (predecessor of an action, kind of the gap to it); (None, ``begin``): it has none."""
    needed = source(action.text, num_stages, by_text)
    made = by_text[needed] if needed is not None else None
    if made is not None and (made.rank == action.rank or _end(made) > action.t0_ns):
        made = None  # the rank's own order has it; or clocks differ by more than the way took
    if made is None or (own is not None and _end(own) >= _end(made)):
        return own, "begin" if own is None else "host"
    return made, "tensor"


def _end(action: ActionSpan) -> int:
    return action.t1_ns if action.t1_ns is not None else action.t0_ns


@dataclass(frozen=True, slots=True)
class MicrobatchWait:
    """An action that waits for an action of another rank in most steps."""

    rank: int
    action: str
    """Action that waited, ``0B0``."""
    producer: str
    """Action whose output the waiting action needed, ``1B0``."""
    producer_rank: int
    wait_ns: int
    """Median wait over the steps in which the action waited, in ns."""
    num_steps: int


def microbatch_waits(steps: Sequence[PipelineStep]) -> tuple[MicrobatchWait, ...]:
    """Return the waits that occur in at least half of the steps, the longest first."""
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
