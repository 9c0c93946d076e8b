"""Ranks that run their rows in order: the one player of plans, tables and rehearsed ops.

A rank runs on until its next item needs something that is not there, and again once that is made.
No item is looked at in vain more often than it is woken, so a play takes time in proportion to its
items. What an item needs, what it makes and what it costs are the caller's: pipeline actions here,
messages on a transport in ``lab.schedules``, collectives in ``lab.rehearse``.

[Note: turns] Ranks move by number, turn after turn; a rank that was set free by one of a lower
number moves in the same turn, else in the next. So the same rows are always run in the same order:
what-if gives each action the measured jitter of its place in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple, TypeVar

from pardbg.analysis.pipeline.dependencies import Action, compute_actions, parse, source

Item = TypeVar("Item")
Plan = Mapping[int, Sequence[str]]
"""rank -> compute actions in order."""
Duration = Callable[[int, Action], float]
"""(rank, action) -> time it takes, any unit."""


def play(
    rows: Sequence[Sequence[Item]],
    missing: Callable[[int, Item], Iterable[Hashable]],
    run: Callable[[int, Item], Iterable[Hashable]],
    by_one: bool = False,
) -> list[int]:
    """Run rows as far as they get. Returns how many items of each row ran.
    ``missing``: (row, item) -> what it lacks, in forms of which any one is enough; none: it runs.
    ``run``: runs (row, item) -> what is there from now on. ``by_one``: one item a turn."""
    at, blocked = [0] * len(rows), [False] * len(rows)
    waiting: dict[Hashable, list[int]] = defaultdict(list)
    due = [(0, row) for row in range(len(rows))]
    while due:
        turn, row = heappop(due)
        items = rows[row]
        while at[row] < len(items):
            item = items[at[row]]
            lacks = tuple(missing(row, item))
            if lacks:
                blocked[row] = True
                for need in lacks:
                    waiting[need].append(row)
                break
            at[row] += 1
            for made in run(row, item):
                for woken in waiting.pop(made, ()):
                    if blocked[woken]:
                        blocked[woken] = False
                        heappush(due, (turn + (woken <= row), woken))
            if by_one:
                heappush(due, (turn + 1, row))
                break
    return at


class Step(NamedTuple):
    """An action of a plan, in an order in which the plan can run."""

    rank: int
    action: str
    needs: int
    """Place in the order of the action whose output it takes; -1: its input is there."""
    crosses: bool
    """That action is on another rank."""
    messages: int
    """Sent and received between it and the rank's action before."""


def in_order(
    plan: Plan,
    num_stages: int,
    sent_with: Mapping[str, str] | None = None,
    messages: Mapping[str, int] | None = None,
) -> tuple[Step, ...] | None:
    """Return all actions of a plan, each after what it needs; None for a plan that cannot run.
    ``sent_with``: action -> the later one of its rank with which its output leaves it;
    ``messages``: action -> messages between it and the one before, none by default."""
    owner = {action: rank for rank, row in plan.items() for action in row}
    ranks, counts = list(plan), messages or {}

    def needed(rank: int, action: str) -> str | None:
        found = source(action, num_stages, owner)
        if found is not None and sent_with and owner[found] != rank:
            return sent_with.get(found, found)
        return found

    order: list[Step] = []
    place: dict[str | None, int] = {}

    def run(row: int, item: tuple[str, str | None]) -> tuple[str]:
        action, needs = item[0], place.get(item[1], -1)
        crosses = needs >= 0 and order[needs].rank != ranks[row]
        place[action] = len(order)
        order.append(Step(ranks[row], action, needs, crosses, counts.get(action, 0)))
        return (action,)

    def missing(_row: int, item: tuple[str, str | None]) -> tuple[str, ...]:
        return () if item[1] is None or item[1] in place else (item[1],)

    rows = [[(action, needed(rank, action)) for action in row] for rank, row in plan.items()]
    play(rows, missing, run)
    return tuple(order) if len(order) == sum(map(len, rows)) else None


@dataclass(frozen=True, slots=True)
class Between:
    """Time between actions, in the unit of their durations. What comes with each place in the
    order is taken from its row in turn: a rank that waits for several ranks feels the longest of
    their ways, which is more than the mean."""

    hops: tuple[float, ...] = (0.0,)
    """From the end of an action until its output is on another rank that waits for it."""
    gaps: tuple[float, ...] = (0.0,)
    """Between two actions of a rank of which the second waits for nothing, less the messages."""
    message: float = 0.0
    """Time that each message sent or received there adds."""


class Clocked(NamedTuple):
    """When the actions of an order run."""

    begins: list[float]
    """By place in the order, like ``ends``."""
    ends: list[float]
    free: dict[int, float]
    """rank -> end of its last action."""
    busy: float
    """Summed over ranks."""


def clock(
    order: Sequence[Step],
    durations: Sequence[float],
    between: Between | None = None,
    starts: Mapping[int, float] | None = None,
) -> Clocked:
    """Run an order: an action begins when its rank is free and its input is there.
    ``durations``: by place in the order; ``starts``: rank -> when it is free at first, 0."""
    hops, gaps = (between.hops, between.gaps) if between is not None else ((0.0,), (0.0,))
    message = between.message if between is not None else 0.0
    num_hops, num_gaps, begin_at = len(hops), len(gaps), starts or {}
    begins: list[float] = []
    ends: list[float] = []
    busy = 0.0
    free: dict[int, float] = {}
    for place, ((rank, _, needs, crosses, count), taken) in enumerate(
        zip(order, durations, strict=True)
    ):
        if rank in free:
            begin = free[rank] + gaps[place % num_gaps] + count * message
        else:
            begin = begin_at.get(rank, 0.0)
        if needs >= 0:
            begin = max(begin, ends[needs] + (hops[place % num_hops] if crosses else 0.0))
        free[rank] = end = begin + taken
        begins.append(begin)
        ends.append(end)
        busy += taken
    return Clocked(begins, ends, free, busy)


@dataclass(frozen=True, slots=True)
class Simulated:
    """A plan in time, with free communication."""

    rows: Mapping[int, tuple[tuple[str, float, float], ...]]
    """rank -> (action, begin, end)."""
    makespan: float
    busy: float
    """Summed over ranks."""

    @property
    def bubble_fraction(self) -> float:
        total = len(self.rows) * self.makespan
        return max(0.0, 1.0 - self.busy / total) if total > 0 else 0.0


def simulate(plan: Plan, num_stages: int, duration: Duration) -> Simulated | None:
    """Run the plan with free communication; None for a plan that cannot run."""
    order = _plain_order(tuple((rank, tuple(row)) for rank, row in plan.items()), num_stages)
    if order is None:
        return None
    parsed = ((step.rank, parse(step.action)) for step in order)
    ran = clock(order, [0.0 if action is None else duration(rank, action)
                        for rank, action in parsed])  # fmt: skip
    rows: dict[int, list[tuple[str, float, float]]] = {rank: [] for rank in plan}
    for step, begin, end in zip(order, ran.begins, ran.ends, strict=True):
        rows[step.rank].append((step.action, begin, end))
    busy = sum(end - begin for row in rows.values() for _, begin, end in row)
    makespan = max(ran.ends) - min(ran.begins) if order else 0.0
    return Simulated({r: tuple(row) for r, row in rows.items()}, makespan, busy)


@lru_cache(maxsize=8)  # each step of a run is simulated by the same plan
def _plain_order(
    plan: tuple[tuple[int, tuple[str, ...]], ...], num_stages: int
) -> tuple[Step, ...] | None:
    return in_order(dict(plan), num_stages)


def compute_plan(order: Mapping[int, Sequence[str]], ranks: Sequence[int]) -> dict[int, list[str]]:
    """Return the compute actions of each rank, communication left out."""
    return {
        rank: [action for entry in order.get(rank, ()) for action in compute_actions(entry)]
        for rank in ranks
    }


def overlapped(row: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of a rank's plan: ``(0F3;1B2)OVERLAP_F_B``."""
    entries = (compute_actions(entry) for entry in row if entry.startswith("("))
    return tuple((pair[0], pair[1]) for pair in entries if len(pair) == 2)


def uniform_slots(plan: Plan, num_stages: int) -> dict[int, tuple[str, ...]]:
    """Return each rank's row with one slot per action and ``""`` where the plan idles, for drawing.

    Slots come from the simulation with every action one unit long. A plan that cannot run is
    given as it stands, without bubbles.
    """
    simulated = simulate(plan, num_stages, lambda _rank, _action: 1.0)
    if simulated is None:
        return {rank: tuple(row) for rank, row in plan.items()}
    slots: dict[int, tuple[str, ...]] = {}
    for rank, row in simulated.rows.items():
        cells = [""] * (int(row[-1][2]) if row else 0)
        for action, begin, _ in row:
            cells[int(begin)] = action
        slots[rank] = tuple(cells)
    return slots
