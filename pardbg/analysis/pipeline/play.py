"""Simulation of ranks that run their rows in order, for plans, tables and rehearsed ops alike.

A rank runs on until its next item lacks an input, and again once that is made. No item is tested in
vain more often than it is woken, so a simulation takes time in proportion to its items. Inputs,
outputs and costs of an item are the caller's: pipeline actions here, messages on a transport in
``lab.schedules``, collectives in ``lab.rehearse``.

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
"""rank -> compute actions, in order"""
Duration = Callable[[int, Action], float]
"""(rank, action) -> duration of the action, in any unit"""


def play(
    rows: Sequence[Sequence[Item]],
    missing: Callable[[int, Item], Iterable[Hashable]],
    run: Callable[[int, Item], Iterable[Hashable]],
    by_one: bool = False,
) -> list[int]:
    """Run rows as far as they get, and return how many items of each row ran. ``missing``: (row,
    item) -> inputs it lacks, any one of which suffices; empty: it runs. ``run``: runs (row, item)
    and returns what is available from then on. ``by_one``: one item per turn."""
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
    """Place in the order of the action whose output this action takes; -1: its input is there."""
    crosses: bool
    """Whether the action whose output this action takes is on another rank."""
    messages: int
    """Number of messages sent and received between the action and the rank's action before."""


def in_order(
    plan: Plan,
    num_stages: int,
    sent_with: Mapping[str, str] | None = None,
    messages: Mapping[str, int] | None = None,
) -> tuple[Step, ...] | None:
    """Return all actions of a plan, each after its inputs; None for a plan that cannot run.
    ``sent_with``: action -> later action of its rank with which its output is sent; ``messages``:
    action -> messages between it and the one before, none by default."""
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
    """Times between actions, in the unit of their durations. Each place in the order takes the next
    value of its row in turn: a rank that waits for several ranks has the longest of their
    transfers, which exceeds the mean."""

    hops: tuple[float, ...] = (0.0,)
    """Times from the end of an action until its output is on another rank that waits for it."""
    gaps: tuple[float, ...] = (0.0,)
    """Times between two actions of a rank if the second waits for nothing, without messages."""
    message: float = 0.0
    """Additional time for each message sent or received in between."""


class Clocked(NamedTuple):
    """Times at which the actions of an order run."""

    begins: list[float]
    """Begin of each action by place in the order, like ``ends``."""
    ends: list[float]
    free: dict[int, float]
    """rank -> end of its last action"""
    busy: float
    """Sum of all durations, over ranks."""


def clock(
    order: Sequence[Step],
    durations: Sequence[float],
    between: Between | None = None,
    starts: Mapping[int, float] | None = None,
) -> Clocked:
    """Run an order: an action begins when its rank is free and its input is there. ``durations``:
    by place in the order; ``starts``: rank -> time from which it is free, else 0."""
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
    """A plan laid out in time, with free communication."""

    rows: Mapping[int, tuple[tuple[str, float, float], ...]]
    """rank -> (action, begin, end)"""
    makespan: float
    busy: float
    """Sum of all durations, over ranks."""

    @property
    def bubble_fraction(self) -> float:
        total = len(self.rows) * self.makespan
        return max(0.0, 1.0 - self.busy / total) if total > 0 else 0.0


def simulate(plan: Plan, num_stages: int, duration: Duration) -> Simulated | None:
    """Return the plan run with free communication; None for a plan that cannot run."""
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
    """Return the compute actions of each rank, without communication."""
    return {
        rank: [action for entry in order.get(rank, ()) for action in compute_actions(entry)]
        for rank in ranks
    }


def overlapped(row: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the overlapped pairs of a rank's plan: ``(0F3;1B2)OVERLAP_F_B``."""
    entries = (compute_actions(entry) for entry in row if entry.startswith("("))
    return tuple((pair[0], pair[1]) for pair in entries if len(pair) == 2)


def uniform_slots(plan: Plan, num_stages: int) -> dict[int, tuple[str, ...]]:
    """Return each rank's row for drawing, with one slot per action and ``""`` where the plan idles.

    Slots come from the simulation with every action one unit long. A plan that cannot run is
    returned unchanged, without bubbles.
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
