"""``pardbg schedule search``: the table found, beside the built-in schedules."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from pardbg.errors import UserError
from pardbg.words import duration, percent

if TYPE_CHECKING:
    from pardbg.analysis.whatif.costs import Costs
    from pardbg.lab.schedules.compare import Durations, Predicted
    from pardbg.lab.schedules.schedule_table import Table
    from pardbg.lab.schedules.search import Found, Problem


def look(
    num_ranks: int, num_microbatches: int, taken: Durations | Costs, memory: float | None,
    placement: str, seconds: float,
) -> tuple[str, str | None]:  # fmt: skip
    """Return (text for the user, the table found as CSV, or None if no built-in is beaten).
    ``seconds``: for the solver, over all placements."""
    from pardbg.lab.schedules.compare import predict
    from pardbg.lab.schedules.schedule_table import dump
    from pardbg.lab.schedules.schedule_text import compared
    from pardbg.lab.schedules.search import PLACEMENTS, Problem

    chosen = [one for one in PLACEMENTS if placement in ("any", one)]
    problems = [Problem(num_ranks, num_microbatches, one, taken, memory) for one in chosen]
    tables = _built_in(problems)
    there = [predict(name, table, taken) for name, table in tables.items()]
    fits = [one for one in there if _fits(one, problems[0])]
    rival = min(fits, key=lambda one: one.step_ns or 0, default=None)
    shortest = min(one.bound_ns() for one in problems)
    done = rival is not None and _step(rival) <= shortest * 1.005
    best = _best(problems, tables, 0.0 if done else seconds)
    if best is None and rival is None:
        least = 1 if memory is not None and memory < 1 else memory
        raise UserError(f"nothing runs with --memory {memory:g}: give at least {least}")
    over = [replace(one, name=f"{one.name} (over the limit)") for one in there if one not in fits]
    lines = [compared([*([best.predicted] if best else []), *fits, *over])]
    wins = best is not None and (rival is None or _step(best.predicted) < _step(rival) * 0.9999)
    if best is not None and wins:
        lines += _won(best, rival)
        return "\n".join(lines), dump(best.table)
    assert rival is not None
    short = ", which is as short as any can be" if done else ""
    return "\n".join([*lines, f"found none that beats {rival.name}{short}"]), None


def _step(one: Predicted) -> float:
    return one.step_ns or float("inf")


def _won(best: Found, rival: Predicted | None) -> list[str]:
    lines = []
    if rival is not None:
        less = 1 - _step(best.predicted) / _step(rival)
        lines.append(
            f"{percent(less)} shorter than {rival.name}, the best built-in under the limit"
        )
    where = {"one": "one stage per rank", "v": "two stages per rank, V-shaped",
             "loop": "two stages per rank, looped"}[best.placement]  # fmt: skip
    if best.proved:
        lines.append(f"{where}: by these durations none of that kind is shorter")
    else:
        room = 1 - best.bound_ns / _step(best.predicted)
        lines.append(f"{where}: none of that kind is shorter than {duration(best.bound_ns)} "
                     f"({percent(room)} less than this one)")  # fmt: skip
    return lines


def _best(problems: Sequence[Problem], there: Mapping[str, Table], seconds: float) -> Found | None:
    """Return the shortest table over all placements, including those ``there``; the solver improves
    it if it could be shorter."""
    from pardbg.lab.schedules.search import search
    from pardbg.lab.schedules.solver import improve, solver_there

    found: list[tuple[Problem, Found]] = []
    bar = click.progressbar(length=1000 * len(problems), label="heuristic", file=sys.stderr)
    with bar:
        for number, problem in enumerate(problems):

            def show(share: float, number: int = number) -> None:
                bar.update(round(1000 * (number + share)) - bar.pos)

            made = search(problem, show, there.values())
            found += [(problem, made)] if made is not None else []
    best = min((made for _, made in found), key=lambda one: _step(one.predicted), default=None)
    if seconds and not solver_there():
        click.echo("pardbg: no solver installed, only the heuristic runs: "
                   "pip install 'pardbg[search]' adds one", err=True)  # fmt: skip
    open_ = [(p, made) for p, made in found
             if best is not None and made.bound_ns < _step(best.predicted) * 0.995]  # fmt: skip
    if not seconds or not solver_there() or not open_:
        return best
    click.echo(f"solver: {duration(seconds * 1e9)} at most", err=True)
    for problem, made in open_:
        made = improve(problem, made, seconds / len(open_), min(8, os.cpu_count() or 1))
        best = min(best or made, made, key=lambda one: (_step(one.predicted), -one.bound_ns))
    return best


def _fits(one: Predicted, problem: Problem) -> bool:
    verdict = one.verdict
    per_rank = verdict.num_stages / verdict.num_ranks
    most = max(verdict.in_flight, default=0) / per_rank
    return verdict.good and (problem.memory is None or most <= problem.memory + 1e-9)


def _built_in(problems: Sequence[Problem]) -> dict[str, Table]:
    from pardbg.analysis.whatif import plans
    from pardbg.lab.schedules.schedule_table import from_plan

    made, several = {}, {one.num_stages // one.num_ranks for one in problems}
    for name in plans.SCHEDULES:
        stages = 1 if name in plans.ONE_STAGE else 2
        one = problems[0]
        try:
            plan = plans.plan(name, one.num_ranks, stages, one.num_microbatches)
        except plans.NoPlan:
            continue
        if stages in several:
            made[name] = from_plan(plan)
    return made
