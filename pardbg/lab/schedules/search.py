"""Search for a schedule that beats the built-in ones under a limit of activations.

First a heuristic: ranks take actions one after the other as their inputs come, by many policies
(how many forwards ahead, which stage first, when W may run), starting with built-in schedules that
fit. Then, if ``ortools`` is installed, its CP-SAT solver improves the best one and finds a bound:
with a proof, no table of this kind is shorter. The result is a table like any other, and checked by
lint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final, Literal

from pardbg.analysis.pipeline.dependencies import needed
from pardbg.analysis.whatif.costs import Costs
from pardbg.lab.schedules.compare import Durations, Predicted, mean_times, predict
from pardbg.lab.schedules.schedule_table import Op, Table, from_plan

Placement = Literal["one", "loop", "v"]
PLACEMENTS: Final[tuple[Placement, ...]] = ("one", "v", "loop")
"""Placements: one stage per rank; two, there and back (0 and 7 …) or round (0 and 4 …)."""
Rows = list[list[Op]]
Progress = Callable[[float], None]
"""Function called with the share of the work that is done."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The pipeline for which a schedule is searched."""

    num_ranks: int
    num_microbatches: int
    placement: Placement
    taken: Durations | Costs
    memory: float | None
    """Maximum activations on a rank, in microbatches through all its stages; None: no limit."""

    @property
    def num_stages(self) -> int:
        return self.num_ranks * (1 if self.placement == "one" else 2)

    @property
    def most(self) -> int:
        """Return the limit of activations in microbatches of one stage."""
        whole = self.num_microbatches * self.num_stages
        if self.memory is None:
            return whole
        return int(self.memory * self.num_stages / self.num_ranks + 1e-9)

    def rank(self, stage: int) -> int:
        """Return the rank that has a stage."""
        if self.placement == "v" and stage >= self.num_ranks:
            return self.num_stages - 1 - stage
        return stage % self.num_ranks

    def needs(self, op: Op) -> Op | None:
        """Return the action whose output this action takes, in the split form."""
        found = needed(op, self.num_stages)
        return None if found is None else Op(*found)

    def bound_ns(self) -> float:
        """Return a lower bound of a step: a rank's work, after the forwards that lead to it."""
        times, hop = self.times()
        lead, bound = 0.0, 0.0
        for rank in range(self.num_ranks):
            stages = [s for s in range(self.num_stages) if self.rank(s) == rank]
            busy = sum(times[s, kind] for s in stages for kind in "FIW") * self.num_microbatches
            bound = max(bound, lead + busy)
            lead += times[rank, "F"] + hop
        return bound

    def times(self) -> tuple[Mapping[tuple[int, str], float], float]:
        """Return ((stage, kind) -> ns, ns from rank to rank)."""
        return mean_times(self.taken, self.num_ranks, self.num_stages, self.num_microbatches)


@dataclass(frozen=True, slots=True)
class Found:
    """The best table of a search."""

    table: Table
    predicted: Predicted
    placement: Placement
    bound_ns: float
    """Lower bound of the step time for this placement and these durations."""

    @property
    def proved(self) -> bool:
        """Return whether the table is the shortest of its placement, up to rounding."""
        return (self.predicted.step_ns or 0) <= self.bound_ns * 1.005


@dataclass(frozen=True, slots=True)
class _Policy:
    ahead: int
    """Number of forwards beyond 1F1B's warm-up on each rank."""
    deep_first: bool
    """Whether to prefer the later of two stages whose forwards could run."""
    forward_first: bool
    """Whether to run a forward before a backward, while the limit allows one more."""
    patience: float
    """Share of a W's time to wait for a coming action rather than run the W."""
    pile: int
    """Maximum number of delayed W's before one runs ahead of a forward."""


def search(
    problem: Problem, progress: Progress = lambda _share: None, known: Iterable[Table] = ()
) -> Found | None:
    """Return the best of all policies' tables and the ``known`` ones; None: none fits."""
    best: Found | None = None
    for table in known:
        if table.num_stages == problem.num_stages:
            best = _taken_over(problem, best, table)
    # Policies that differ in nothing that this memory lets them do are one.
    runs = {(tuple(run.most), replace(run.policy, ahead=0)): run
            for run in (_Run(problem, policy) for policy in _policies(problem))}  # fmt: skip
    shortest = float("inf")
    for number, run in enumerate(runs.values()):
        ended = run.to_the_end()
        progress((number + 1) / len(runs))
        if ended is not None and ended < shortest * (1 - 1e-9):
            best, shortest = better(problem, best, run.rows), ended
        if best is not None and best.proved:
            break
    return best


def _taken_over(problem: Problem, best: Found | None, table: Table) -> Found | None:
    rows: Rows = [[] for _ in range(problem.num_ranks)]
    for rank, _, op in table.ops():
        if problem.rank(op.stage) != rank:
            return best
        rows[rank].append(op)
    return better(problem, best, rows)


def better(problem: Problem, best: Found | None, rows: Rows) -> Found | None:
    """Return the better of a table and split rows; I and W become B where that costs nothing."""
    found = _said(problem, rows)
    if found is None or (best is not None and not _beats(found, best)):
        return best
    for rank, row in enumerate(rows):
        for place in range(len(row) - 1, 0, -1):
            first, second = row[place - 1], row[place]
            if first.kind == "I" and second == first._replace(kind="W"):
                whole = [*row[: place - 1], first._replace(kind="B"), *row[place + 1 :]]
                joined = _said(problem, [*rows[:rank], whole, *rows[rank + 1 :]])
                if joined is not None and not _beats(found, joined):
                    found, row = joined, whole
                    rows = [*rows[:rank], whole, *rows[rank + 1 :]]
    return found


def _beats(one: Found, other: Found) -> bool:
    return (one.predicted.step_ns or 0) < (other.predicted.step_ns or 0) * (1 - 1e-9)


def _said(problem: Problem, rows: Rows) -> Found | None:
    """Return the rows as a table, if lint finds no problem on any transport."""
    table = from_plan({rank: [op.text for op in row] for rank, row in enumerate(rows)})
    predicted = predict("search", table, problem.taken)
    good = predicted.verdict.good and predicted.step_ns is not None
    good = good and max(predicted.verdict.in_flight) <= problem.most
    return Found(table, predicted, problem.placement, problem.bound_ns()) if good else None


def _policies(problem: Problem) -> Iterator[_Policy]:
    per_rank = problem.num_stages // problem.num_ranks
    aheads = sorted({k for k in (0, 1, 2, 3, problem.num_ranks - 1, problem.num_ranks,
                                 2 * problem.num_ranks) if k >= 0})  # fmt: skip
    deep = (True, False) if per_rank > 1 else (True,)
    piles = (1, 2, problem.num_ranks, 1 << 20)
    for ahead, deep_first, forward_first, patience, pile in product(
        aheads, deep, (True, False), (0.0, 0.5, 1.0), piles
    ):
        yield _Policy(ahead * per_rank, deep_first, forward_first, patience, pile)


class _Run:
    """A run of one policy."""

    def __init__(self, problem: Problem, policy: _Policy) -> None:
        self.problem, self.policy = problem, policy
        self.times, self.hop = problem.times()
        ranks = range(problem.num_ranks)
        self.stages = [
            [s for s in range(problem.num_stages) if problem.rank(s) == rank] for rank in ranks
        ]
        per_rank = problem.num_stages // problem.num_ranks
        before = ranks if problem.placement == "one" else [0] * problem.num_ranks
        warm_up = [(problem.num_ranks - number) * per_rank for number in before]
        self.most = [min(problem.most, number + policy.ahead) for number in warm_up]
        self.next = {(s, k): 0 for s in range(problem.num_stages) for k in "FIW"}
        self.ends: dict[Op, float] = {}
        self.clock = [0.0 for _ in ranks]
        self.held = [0 for _ in ranks]
        self.rows: Rows = [[] for _ in ranks]

    def ready(self, op: Op) -> float | None:
        """Return the time at which an action's input is ready, ns; None: not known yet."""
        source = self.problem.needs(op)
        if source is None:
            return 0.0
        end = self.ends.get(source)
        if end is None:
            return None
        far = self.problem.rank(source.stage) != self.problem.rank(op.stage)
        return end + (self.hop if far else 0.0)

    def choices(self, rank: int) -> list[tuple[tuple[float, ...], float, Op]]:
        """Return (preference, time when ready, action) of possible next actions, lowest first."""
        policy, found = self.policy, []
        waiting = sum(self.next[s, "I"] - self.next[s, "W"] for s in self.stages[rank])
        room = self.most[rank] - self.held[rank]
        full = room <= 0
        for later, stage in enumerate(reversed(self.stages[rank])):
            for kind in "FIW":
                mb = self.next[stage, kind]
                op = Op(stage, kind, mb)
                when = self.ready(op) if mb < self.problem.num_microbatches else None
                if when is None or (kind == "F" and room <= later):
                    continue  # a place is kept for the forward of each later stage
                urgent = kind == "W" and (waiting >= policy.pile or (full and waiting > 0))
                order = {"F": 0.5 if policy.forward_first else 2, "I": 1, "W": 0.7 if urgent else 3}
                depth = -stage if policy.deep_first or kind != "F" else stage
                found.append(((order[kind], depth), when, op))
        return sorted(found)

    def to_the_end(self) -> float | None:
        """Return when the last action ends, in ns; None: deadlock."""
        while self._step():
            pass
        whole = all(len(row) == self._length(rank) for rank, row in enumerate(self.rows))
        return max(self.ends.values()) if whole else None

    def _step(self) -> bool:
        """Run one action, or advance a rank's clock. False: no rank can move."""
        left = [r for r, row in enumerate(self.rows) if len(row) < self._length(r)]
        for rank in sorted(left, key=lambda r: self.clock[r]):
            now, choices = self.clock[rank], self.choices(rank)
            op = self._pick(choices, now)
            if op is not None:
                self._run(rank, op, now)
                return True
            later = [when for _, when, _ in choices if when > now]
            others = [self.clock[r] for r in left if self.clock[r] > now]
            if later or others:
                self.clock[rank] = min([*later, *others])
                return True
        return False

    def _pick(
        self, choices: Sequence[tuple[tuple[float, ...], float, Op]], now: float
    ) -> Op | None:
        here = [op for _, when, op in choices if when <= now]
        if not here:
            return None
        op = here[0]
        if op.kind == "W" and self.policy.patience:
            soon = now + self.policy.patience * self.times[op.stage, "W"]
            if any(when <= soon and other.kind == "I" for _, when, other in choices if when > now):
                return None
        return op

    def _run(self, rank: int, op: Op, now: float) -> None:
        self.next[op.stage, op.kind] += 1
        self.clock[rank] = self.ends[op] = now + self.times[op.stage, op.kind]
        self.held[rank] += (op.kind == "F") - (op.kind == "W")
        self.rows[rank].append(op)

    def _length(self, rank: int) -> int:
        return 3 * len(self.stages[rank]) * self.problem.num_microbatches
