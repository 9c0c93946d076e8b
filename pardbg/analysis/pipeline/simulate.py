"""A plan and durations to times: the schedule as it would run with free communication."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pardbg.analysis.pipeline.dependencies import Action, compute_actions, parse, source

Plan = Mapping[int, Sequence[str]]
"""rank -> compute actions in order."""
Duration = Callable[[int, Action], float]
"""(rank, action) -> time it takes, any unit."""


@dataclass(frozen=True, slots=True)
class Simulated:
    rows: Mapping[int, tuple[tuple[str, float, float], ...]]
    """rank -> (action, begin, end)."""
    makespan: float
    busy: float
    """Summed over ranks."""

    @property
    def bubble_fraction(self) -> float:
        total = len(self.rows) * self.makespan
        return max(0.0, 1.0 - self.busy / total) if total > 0 else 0.0


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


class Step(NamedTuple):
    """An action of a plan in an order in which it can run."""

    rank: int
    action: str
    needs: str | None
    """The action whose output it takes, as the plan has it; None: its input is there."""


def in_order(
    plan: Plan, num_stages: int, sent_with: Mapping[str, str] | None = None
) -> list[Step] | None:
    """Return all actions of a plan, each after what it needs; None for a plan that cannot run.

    Args:
        sent_with: action -> the later one of its rank with which its output leaves it.
    """
    owner = {action: rank for rank, row in plan.items() for action in row}
    taken = dict.fromkeys(plan, 0)
    made: list[Step] = []
    done: set[str] = set()
    progress = True
    while progress:
        progress = False
        for rank, row in plan.items():
            while taken[rank] < len(row):
                action = row[taken[rank]]
                needed = source(action, num_stages, owner)
                if needed is not None and sent_with and owner[needed] != rank:
                    needed = sent_with.get(needed, needed)
                if needed is not None and needed not in done:
                    break
                made.append(Step(rank, action, needed))
                done.add(action)
                taken[rank] += 1
                progress = True
    return made if len(made) == sum(map(len, plan.values())) else None


def simulate(plan: Plan, num_stages: int, duration: Duration) -> Simulated | None:
    """Run the plan: an action begins when its rank is free and its input is there.
    None for a plan that cannot run."""
    order = in_order(plan, num_stages)
    if order is None:
        return None
    done: dict[str, float] = {}
    rows: dict[int, list[tuple[str, float, float]]] = {rank: [] for rank in plan}
    for rank, action, needed in order:
        free = rows[rank][-1][2] if rows[rank] else 0.0
        begin = max(free, done[needed] if needed is not None else 0.0)
        parsed = parse(action)
        done[action] = begin + (duration(rank, parsed) if parsed is not None else 0.0)
        rows[rank].append((action, begin, done[action]))
    ends = [row[-1][2] for row in rows.values() if row]
    begins = [row[0][1] for row in rows.values() if row]
    busy = sum(end - begin for row in rows.values() for _, begin, end in row)
    makespan = max(ends) - min(begins) if ends else 0.0
    return Simulated({r: tuple(row) for r, row in rows.items()}, makespan, busy)


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
