"""CP-SAT for schedules: improves a table that runs, and finds a bound for all tables of its kind.

``ortools`` is an extra, imported only here, on request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Final

from pardbg.analysis.pipeline.play import Between
from pardbg.analysis.whatif.playout import ordered, spans
from pardbg.lab.schedules.schedule_table import Op
from pardbg.lab.schedules.search import Found, Problem, better

UNITS: Final = 20
"""Number of units in the shortest duration: the solver's times are whole numbers."""


def solver_there() -> bool:
    """Return whether ``ortools`` is installed."""
    return find_spec("ortools") is not None


def improve(problem: Problem, start: Found, seconds: float, workers: int = 1) -> Found:
    """Return the best table found in ``seconds``, with the bound proved by then."""
    from ortools.sat.python import cp_model

    times, hop = problem.times()
    unit = min(ns for ns in times.values() if ns > 0) / UNITS
    whole = {key: round(ns / unit) for key, ns in times.items()}
    model = cp_model.CpModel()
    horizon = round((start.predicted.step_ns or 0) / unit * 1.05) + UNITS
    begins = _begins(model, problem, whole, round(hop / unit), horizon)
    last = model.new_int_var(0, horizon, "last")
    for op, begin in begins.items():
        model.add(last >= begin + whole[op.stage, op.kind])
    model.minimize(last)
    _hint(model, problem, start, begins, whole, round(hop / unit))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = 16
    status = solver.solve(model)
    best = start
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        rows: list[list[Op]] = [[] for _ in range(problem.num_ranks)]
        for op in sorted(begins, key=lambda o: (solver.value(begins[o]), "IWF".index(o.kind))):
            rows[problem.rank(op.stage)].append(op)
        best = better(problem, start, rows) or start
    return replace(best, bound_ns=max(best.bound_ns, solver.best_objective_bound * unit))


def _begins(
    model: Any, problem: Problem, whole: Mapping[tuple[int, str], int], hop: int, horizon: int
) -> dict[Op, Any]:
    """Return a variable per action: one at a time on a rank, after its input, within the memory."""
    begins: dict[Op, Any] = {}
    spans: list[list[Any]] = [[] for _ in range(problem.num_ranks)]
    for stage in range(problem.num_stages):
        for kind in "FIW":
            for mb in range(problem.num_microbatches):
                op = Op(stage, kind, mb)
                begins[op] = model.new_int_var(0, horizon, op.text)
                size = whole[stage, kind]
                span = model.new_fixed_size_interval_var(begins[op], size, f"_{op.text}")
                spans[problem.rank(stage)].append(span)
                if mb:  # microbatches are alike: in their order on every stage
                    model.add(begins[op] >= begins[Op(stage, kind, mb - 1)] + size)
    for row in spans:
        model.add_no_overlap(row)
    for op, begin in begins.items():
        needed = problem.needs(op)
        if needed is not None:
            far = hop if problem.rank(needed.stage) != problem.rank(op.stage) else 0
            model.add(begin >= begins[needed] + whole[needed.stage, needed.kind] + far)
    for rank in range(problem.num_ranks):
        mine = [op for op in begins if problem.rank(op.stage) == rank and op.kind in "FW"]
        if problem.most < len(mine) // 2:
            at = [begins[op] + (whole[op.stage, "W"] if op.kind == "W" else 0) for op in mine]
            steps = [1 if op.kind == "F" else -1 for op in mine]
            model.add_reservoir_constraint(at, steps, 0, problem.most)
    return begins


def _hint(
    model: Any, problem: Problem, start: Found, begins: Mapping[Op, Any],
    whole: Mapping[tuple[int, str], int], hop: int,
) -> None:  # fmt: skip
    """Give the solver the starting table, played in whole units."""
    rows: dict[int, tuple[str, ...]] = dict.fromkeys(range(problem.num_ranks), ())
    for rank, _, op in start.table.ops():
        kinds = "IW" if op.kind == "B" else op.kind
        rows[rank] += tuple(op._replace(kind=kind).text for kind in kinds)
    order = ordered(rows, problem.num_stages)
    times = {key: (units,) for key, units in whole.items()}
    played = spans(order, times, 1.0, Between(hops=(float(hop),)))
    for op, begin in begins.items():
        model.add_hint(begin, round(played[op.text][0]))
