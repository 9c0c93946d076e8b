"""Sheet of a table for viewing and editing: each action's place on the tick grid, its time, and the
figures of the whole. No torch, no job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pardbg.analysis.pipeline.dependencies import producer, satisfied, source, twin
from pardbg.analysis.pipeline.play import play
from pardbg.analysis.pipeline.ticks.grid import CellState, TickCell, TickGrid, TickRow
from pardbg.analysis.pipeline.values import ActionSpan
from pardbg.analysis.whatif.costs import Costs
from pardbg.lab.schedules.compare import Durations, Predicted, predict, timeline
from pardbg.lab.schedules.lint import Problem
from pardbg.lab.schedules.schedule_table import Op, Table


@dataclass(frozen=True, slots=True)
class Placed:
    """An action of the table."""

    rank: int
    at: int
    """Index of the cell in the rank's row."""
    op: Op
    tick: int
    """Tick of the action, from 1."""
    runs: bool
    """Whether the action ever begins; if not, the tick is only the place at which it is drawn."""


@dataclass(frozen=True)
class Sheet:
    """A table with all derived facts."""

    table: Table
    predicted: Predicted
    rows: tuple[tuple[Placed, ...], ...]
    times: Mapping[str, tuple[float, float]]
    """action -> (begin, end) in ns by the assumed durations; empty if the table cannot run."""
    num_stages: int

    @property
    def num_ticks(self) -> int:
        """Number of drawn ticks."""
        return max((one.tick for row in self.rows for one in row), default=0)

    @cached_property
    def where(self) -> Mapping[str, Placed]:
        """action -> its place in the table."""
        return {one.op.text: one for row in self.rows for one in row}

    @cached_property
    def stage_peaks(self) -> tuple[int, ...]:
        """stage -> maximum number of microbatches after forward and before backward."""
        held, most = [0] * self.num_stages, [0] * self.num_stages
        for _, _, op in self.table.ops():
            if 0 <= op.stage < self.num_stages:
                held[op.stage] += (op.kind == "F") - (op.kind in ("B", "W"))
                most[op.stage] = max(most[op.stage], held[op.stage])
        return tuple(most)

    def problems_at(self, rank: int, at: int) -> tuple[Problem, ...]:
        """Return lint's problems of one cell."""
        row = self.table.rows[rank] if rank < len(self.table.rows) else ()
        column = row[at].column if at < len(row) else -2
        return tuple(p for p in self.predicted.verdict.problems
                     if p.rank == rank and p.column == column)  # fmt: skip

    def needs(self, op: Op) -> Placed | None:
        """Return the action whose output this action takes."""
        needed = source(op.text, self.num_stages, self.where)
        return self.where[needed] if needed is not None else None

    def grid(self, now: int) -> TickGrid:
        """Return the tick grid after ``now`` ticks."""
        done = {one.op.text for row in self.rows for one in row if one.runs and one.tick <= now}
        rows = tuple(self._row(rank, now, done) for rank in range(len(self.rows)))
        return TickGrid("", 0, 0, min(now, self.num_ticks), self.num_ticks, rows,
                        self.num_stages, "plan")  # fmt: skip

    def _row(self, rank: int, now: int, done: set[str]) -> TickRow:
        row = self.rows[rank]
        coming = next((one for one in row if not one.runs or one.tick > now), None)
        ready = coming is not None and coming.runs
        ready = ready and coming is not None and satisfied(coming.op.text, self.num_stages, done)
        cells = tuple(
            TickCell(one.op.text, *one.op, one.tick, self._state(one, now, coming, ready),
                     self._span(one))
            for one in row
        )  # fmt: skip
        waits, whose = None, None
        if coming is not None and not ready:
            waits = producer(coming.op.text, self.num_stages) or f"{coming.op.stage}F.."
            needed = self.needs(coming.op)
            waits, whose = (needed.op.text, needed.rank) if needed is not None else (waits, None)
        held = sum((one.op.kind == "F") - (one.op.kind in ("B", "W"))
                   for one in row if one.op.text in done)  # fmt: skip
        peaks = self.predicted.verdict.in_flight
        stages = tuple(sorted({one.op.stage for one in row}))
        return TickRow(rank, stages, cells, "", waits, whose, max(held, 0),
                       peaks[rank] if rank < len(peaks) else None)  # fmt: skip

    def _state(self, one: Placed, now: int, coming: Placed | None, ready: bool) -> CellState:
        if not one.runs or one.tick > now:
            return "next" if one is coming and ready else "plan"
        return "last" if one.tick == now < self.num_ticks else "done"

    def _span(self, one: Placed) -> ActionSpan | None:
        begin, end = self.times.get(one.op.text, (None, None))
        if begin is None or end is None:
            return None
        return ActionSpan(one.rank, one.op.stage, one.op.kind, one.op.microbatch,
                          round(begin), round(end))  # fmt: skip


def sheet(table: Table, taken: Durations | Costs) -> Sheet:
    predicted = predict("", table, taken)
    times = timeline(table, taken) if predicted.step_ns is not None else {}
    return Sheet(table, predicted, _places(table), times, table.num_stages)


def _places(table: Table) -> tuple[tuple[Placed, ...], ...]:
    """Return the ticks of a table's compute, as far as it runs; blocked actions come after."""
    rows = [[(at, op) for at, cell in enumerate(row) for op in cell.ops if op.is_compute]
            for row in table.rows]  # fmt: skip
    planned = {op.text for row in rows for _, op in row}
    ticks: dict[str, int] = {}
    placed: list[list[Placed]] = [[] for _ in rows]

    def forms(op: Op) -> list[str]:
        needed = producer(op.text, table.num_stages)
        return [form for form in (needed, twin(needed) if needed else None) if form in planned]

    def missing(_rank: int, item: tuple[int, Op]) -> Sequence[str]:
        needs = forms(item[1])
        return () if any(form in ticks for form in needs) else needs

    def put(rank: int, item: tuple[int, Op], ready: int, runs: bool) -> int:
        tick = max(placed[rank][-1].tick if placed[rank] else 0, ready) + 1
        placed[rank].append(Placed(rank, *item, tick, runs))
        return tick

    def run(rank: int, item: tuple[int, Op]) -> tuple[str]:
        ready = next((ticks[form] for form in forms(item[1]) if form in ticks), 0)
        ticks.setdefault(item[1].text, put(rank, item, ready, True))
        return (item[1].text,)

    for rank, reached in enumerate(play(rows, missing, run)):
        for item in rows[rank][reached:]:
            put(rank, item, 0, False)
    return tuple(map(tuple, placed))
