"""A plan run with measured costs: the begin of each action, and the duration of a step.

An action begins when its rank is free and its input has come. Between two actions of a rank lies
host time, more where messages are sent or received between them; between two steps of a rank, all
that is not the pipeline. If nothing makes the ranks wait for each other at a step's end, a rank
that is done begins its next step while others finish theirs: so a step is what it takes when steps
follow each other, not the first one alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from pardbg.analysis.pipeline.dependencies import Action, compute_actions, parse
from pardbg.analysis.pipeline.play import Between, Step, clock, in_order, overlapped
from pardbg.analysis.whatif.plans import NoPlan, Plan

ROUNDS: Final = 3
"""Number of steps after which the ranks' offsets are settled."""
Times = Mapping[tuple[int, str], Sequence[float]]
"""(stage, kind) -> duration of each microbatch in ns"""


@dataclass(frozen=True, slots=True)
class Outside:
    """Step time outside the pipeline: data loading, optimizer, host."""

    ns: float = 0.0
    together: bool = True
    """Whether no rank begins a step before all have ended the one before."""


class Ran(NamedTuple):
    window: float
    """Time from the first begin to the last end, in ns."""
    busy: float
    """Sum of compute time over ranks, in ns."""
    period: float
    """Time from one step's end to the next one's, in ns."""

    def bubble_fraction(self, num_ranks: int) -> float:
        return 1 - self.busy / (num_ranks * self.window) if self.window > 0 else 0.0


def units(row: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return a plan's row in units that are sent at once: an action, or an overlapped pair."""
    return tuple(parts for entry in row if (parts := compute_actions(entry)))


def actions(row: Sequence[str]) -> tuple[str, ...]:
    """Return a plan's row with overlapped pairs as their two actions."""
    return tuple(action for parts in units(row) for action in parts)


def messages(
    before: Collection[Action], after: Collection[Action], owner: Mapping[int, int], num_stages: int
) -> int:
    """Return the number of messages that one rank sends after ``before`` and receives for
    ``after``; ``owner``: stage -> rank, as stages on one rank need no message."""
    count = 0
    for sign, several in ((1, before), (-1, after)):
        for stage, kind, _ in several:
            if kind == "W":
                continue
            other = stage + sign if kind == "F" else stage - sign
            count += 0 <= other < num_stages and owner.get(other) != owner.get(stage)
    return count


def ordered(plan: Plan, num_stages: int) -> tuple[Step, ...]:
    """Return the plan in an order in which it can run, ranks by place. Raises NoPlan."""
    return _ordered(tuple(plan.values()), num_stages)


@lru_cache(maxsize=256)
def _ordered(rows: tuple[tuple[str, ...], ...], num_stages: int) -> tuple[Step, ...]:
    # torch's runtime sends an overlapped pair's outputs when both of its parts are done.
    sent = dict(pair for row in rows for pair in overlapped(row))
    flat = {rank: actions(row) for rank, row in enumerate(rows)}
    order = in_order(flat, num_stages, sent, _messages(rows, num_stages))
    if order is None:
        raise NoPlan("its order cannot run")
    return order


def _messages(rows: Sequence[Sequence[str]], num_stages: int) -> dict[str, int]:
    """Return action -> number of messages between it and the one before; 0 within a pair."""
    parsed = [[[a for text in unit if (a := parse(text))] for unit in units(row)] for row in rows]
    owner = {
        action.stage: rank for rank, row in enumerate(parsed) for unit in row for action in unit
    }
    counts: dict[str, int] = {}
    for row in parsed:
        before: list[Action] = []
        for unit in row:
            for place, action in enumerate(unit):
                found = messages(before, unit, owner, num_stages) if place == 0 else 0
                counts[action.text] = found
            before = unit
    return counts


def run(
    order: Sequence[Step], times: Times, scale: float, between: Between, outside: Outside
) -> Ran:
    """Return the result of running steps of the plan until they settle. ``scale``: factor of all
    durations, a microbatch's size by the measured one's."""
    taken = _durations(order, times, scale)
    starts: dict[int, float] = {}
    before: dict[int, float] = {}
    for _ in range(1 if outside.together else ROUNDS):
        ran = clock(order, taken, between, starts)
        period = max(ran.free[rank] - before.get(rank, 0.0) for rank in ran.free)
        before = ran.free
        starts = {rank: end + outside.ns for rank, end in ran.free.items()}
    window = max(ran.free.values()) - min(ran.begins)
    return Ran(window, ran.busy, window + outside.ns if outside.together else period)


def spans(
    order: Sequence[Step], times: Times, scale: float, between: Between
) -> dict[str, tuple[float, float]]:
    """Return action -> (begin, end) in ns, of a single step."""
    ran = clock(order, _durations(order, times, scale), between)
    begins = zip(order, ran.begins, ran.ends, strict=True)
    return {step.action: (begin, end) for step, begin, end in begins}


def _durations(order: Sequence[Step], times: Times, scale: float) -> list[float]:
    """Return the duration of each action of an order, in ns. Raises NoPlan for unknown ones."""
    taken = []
    for step in order:
        action = parse(step.action)
        if action is None:
            raise NoPlan(f"{step.action} is not an action of a stage")
        row = times[action.stage, action.kind]
        taken.append(scale * row[action.microbatch % len(row)])
    return taken
