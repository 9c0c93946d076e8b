"""A plan run with measured costs: when each action would begin, and how long a step would take.

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
from pardbg.analysis.pipeline.simulate import in_order, overlapped
from pardbg.analysis.whatif.plans import NoPlan, Plan

ROUNDS: Final = 3
"""Steps after which the ranks' steps lie as they stay."""
Times = Mapping[tuple[int, str], Sequence[float]]
"""(stage, kind) -> ns per microbatch"""


@dataclass(frozen=True, slots=True)
class Between:
    """What passes between actions, in ns."""

    hops: tuple[float, ...] = (0.0,)
    """From the end of an action until what it made is there on another rank that waits for it: each
    as it was. Who waits for several feels the longest, which is more than their mean."""
    gaps: tuple[float, ...] = (0.0,)
    """Between two actions of a rank of which the second waits for nothing, less the messages."""
    message: float = 0.0
    """What each message that is sent or received there adds."""


@dataclass(frozen=True, slots=True)
class Outside:
    """Step time outside the pipeline: data loading, optimizer, host."""

    ns: float = 0.0
    together: bool = True
    """No rank begins a step before all have ended the one before."""


class Todo(NamedTuple):
    """An action of a plan in an order in which it can run."""

    rank: int
    """By its place in the pipeline."""
    stage: int
    kind: str
    microbatch: int
    needs: int
    """Place of its producer in the same order; -1: none in the plan."""
    crosses: bool
    """The producer is on another rank."""
    messages: int
    """Sent and received between it and the rank's action before."""


class Ran(NamedTuple):
    window: float
    """First begin to last end."""
    busy: float
    """Summed over ranks."""
    period: float
    """From one step's end to the next one's."""

    def bubble_fraction(self, num_ranks: int) -> float:
        return 1 - self.busy / (num_ranks * self.window) if self.window > 0 else 0.0


def units(row: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return a plan's row as what is sent for at once: an action, or an overlapped pair."""
    return tuple(parts for entry in row if (parts := compute_actions(entry)))


def actions(row: Sequence[str]) -> tuple[str, ...]:
    """Return a plan's row with pairs as their two parts."""
    return tuple(action for parts in units(row) for action in parts)


def messages(
    before: Collection[Action], after: Collection[Action], owner: Mapping[int, int], num_stages: int
) -> int:
    """Sent after ``before`` and received for ``after``, by one rank.

    Args:
        owner: stage -> rank. Stages on one rank hand on without a message.
    """
    count = 0
    for sign, several in ((1, before), (-1, after)):
        for stage, kind, _ in several:
            if kind == "W":
                continue
            other = stage + sign if kind == "F" else stage - sign
            count += 0 <= other < num_stages and owner.get(other) != owner.get(stage)
    return count


def ordered(plan: Plan, num_stages: int) -> tuple[Todo, ...]:
    """The plan as one list, each action after what it needs. NoPlan if there is no such order."""
    return _ordered(tuple(plan.values()), num_stages)


@lru_cache(maxsize=256)
def _ordered(rows: tuple[tuple[str, ...], ...], num_stages: int) -> tuple[Todo, ...]:
    # torch's runtime sends what an overlapped pair made when both of its parts are done.
    sent = dict(pair for row in rows for pair in overlapped(row))
    counts = _messages(rows, num_stages)
    order = in_order({r: actions(row) for r, row in enumerate(rows)}, num_stages, sent)
    if order is None:
        raise NoPlan("its order cannot run")
    at = {step.action: place for place, step in enumerate(order)}
    made: list[Todo] = []
    for rank, text, needed in order:
        action = parse(text)
        if action is None:
            raise NoPlan(f"{text} is not an action of a stage")
        place = -1 if needed is None else at[needed]
        crosses = needed is not None and order[place].rank != rank
        made.append(Todo(rank, *action, place, crosses, counts[text]))
    return tuple(made)


def _messages(rows: Sequence[Sequence[str]], num_stages: int) -> dict[str, int]:
    """action -> messages between it and the one before. Within a pair there are none."""
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
    order: Sequence[Todo], times: Times, scale: float, between: Between, outside: Outside
) -> Ran:
    """Run steps of the plan one after the other until they settle.

    Args:
        scale: of all durations: a microbatch's size by those measured.
    """
    begins: dict[int, float] = {}
    before: dict[int, float] = {}
    for _ in range(1 if outside.together else ROUNDS):
        first, free, busy = _once(order, times, scale, between, begins)[:3]
        period = max(free[r] - before.get(r, 0.0) for r in free)
        before = free
        begins = {rank: end + outside.ns for rank, end in free.items()}
    window = max(free.values()) - first
    return Ran(window, busy, window + outside.ns if outside.together else period)


def spans(
    order: Sequence[Todo], times: Times, scale: float, between: Between
) -> dict[str, tuple[float, float]]:
    """action -> (begin, end) in ns of one step alone."""
    ends = _once(order, times, scale, between, {})[3]
    found = {}
    for (_, stage, kind, mb, *_), end in zip(order, ends, strict=True):
        row = times[stage, kind]
        found[f"{stage}{kind}{mb}"] = (end - scale * row[mb % len(row)], end)
    return found


def _once(
    order: Sequence[Todo], times: Times, scale: float, between: Between,
    begins: Mapping[int, float],
) -> tuple[float, dict[int, float], float, list[float]]:  # fmt: skip
    """(first begin, end by rank, busy over all ranks, end of each action)"""
    ends: list[float] = []
    free: dict[int, float] = {}
    busy, first = 0.0, float("inf")
    hops, gaps, message = between.hops, between.gaps, between.message
    num_hops, num_gaps = len(hops), len(gaps)
    for place, (rank, stage, kind, mb, needs, crosses, count) in enumerate(order):
        row = times[stage, kind]
        taken = scale * row[mb % len(row)]
        if rank in free:
            begin = free[rank] + gaps[place % num_gaps] + count * message
        else:
            begin = begins.get(rank, 0.0)
        if needs >= 0:
            begin = max(begin, ends[needs] + (hops[place % num_hops] if crosses else 0.0))
        free[rank] = begin + taken
        ends.append(begin + taken)
        busy += taken
        first = min(first, begin)
    return first, free, busy, ends
