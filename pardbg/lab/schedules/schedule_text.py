"""Schedule tables as text: the grid, lint's verdict, and several tables side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pardbg import words
from pardbg.analysis.pipeline.play import uniform_slots
from pardbg.lab.schedules.compare import Predicted
from pardbg.lab.schedules.lint import MAX_PROBLEMS, Verdict
from pardbg.lab.schedules.schedule_table import Table
from pardbg.render.reports.sections import table


def grid(table: Table) -> str:
    """Return a grid: a column per slot of equal length, a row per rank; ``·`` for waiting."""
    rows = {rank: _compute(row) for rank, row in table.plan().items()}
    slots = uniform_slots(rows, table.num_stages)
    width = 1 + max((len(text) for row in slots.values() for text in row), default=1)
    length = max((len(row) for row in slots.values()), default=0)
    name = len(f"r{len(slots) - 1}")
    lines = ["".join((" " * (name + 1), *(f"{n:<{width}}" for n in range(length))))]
    for rank, row in slots.items():
        cells = "".join(f"{text or '·':<{width}}" for text in row)
        lines.append(f"r{rank:<{name}}{cells}")
    return "\n".join(line.rstrip() for line in lines)


def _compute(row: Sequence[str]) -> tuple[str, ...]:
    """Return a rank's actions, with pairs as their two parts."""
    return tuple(
        part for text in row for part in text.removesuffix("OVERLAP_F_B").strip("()").split(";")
    )


_LOADS: Final = {
    "loads": "torch loads it",
    "refused": "torch refuses to load it",
    "no order": "torch finds no order for its messages and refuses to load it",
}


def verdict(name: str, found: Verdict) -> str:
    """Return lint's verdict on one file."""
    shape = (
        f"{words.plural(found.num_ranks, 'rank')}, {words.plural(found.num_stages, 'stage')}, "
        f"{found.num_microbatches} microbatches"
    )
    flight = " ".join(f"r{rank} {count}" for rank, count in enumerate(found.in_flight))
    if found.good:
        return f"{name}: good: {shape}; runs on every transport; most in flight {flight}"
    head = f"{name}: {found.word}: {shape}; {_LOADS[found.load]}"
    more = ["  … these are the first"] * (len(found.problems) == MAX_PROBLEMS)
    return "\n".join((head, *(f"  {problem.line()}" for problem in found.problems), *more))


def compared(tables: Sequence[Predicted]) -> str:
    """Return a line per table, the fastest first; ones that cannot run last, with the reason."""
    rows = [("schedule", "step", "bubble", "in flight", "messages", "")]
    inf = float("inf")
    for one in sorted(tables, key=lambda t: inf if t.step_ns is None else t.step_ns):
        problems = one.verdict.problems
        rows.append((
            one.name, words.duration(one.step_ns), words.percent(one.bubble_fraction),
            str(max(one.verdict.in_flight, default=0)), str(one.num_messages),
            problems[0].line() if problems else "",
        ))  # fmt: skip
    return "\n".join(table(rows, (0, 5)))
