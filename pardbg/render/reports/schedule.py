"""Schedule tables as text: the grid, what lint found, and tables side by side."""

from __future__ import annotations

from collections.abc import Sequence

from pardbg import words
from pardbg.analysis.pipeline.simulate import uniform_slots
from pardbg.analysis.schedules.compare import Predicted
from pardbg.analysis.schedules.lint import Verdict
from pardbg.analysis.schedules.schedule_table import Table


def grid(table: Table) -> str:
    """A column a slot of equal length, a row a rank; ``·`` where the rank waits."""
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
    """A rank's actions, pairs as their two parts."""
    return tuple(
        part for text in row for part in text.removesuffix("OVERLAP_F_B").strip("()").split(";")
    )


def verdict(name: str, found: Verdict) -> str:
    """What lint says of one file."""
    shape = (
        f"{words.plural(found.num_ranks, 'rank')}, {words.plural(found.num_stages, 'stage')}, "
        f"{found.num_microbatches} microbatches"
    )
    flight = " ".join(f"r{rank} {count}" for rank, count in enumerate(found.in_flight))
    if found.good:
        return f"{name}: good: {shape}; runs on every transport; most in flight {flight}"
    head = f"{name}: {found.word}: {shape}"
    return "\n".join((head, *(f"  {problem.line()}" for problem in found.problems)))


def compared(tables: Sequence[Predicted]) -> str:
    """One line a table, the fastest first; those that cannot run last, with the reason."""
    rows = [("schedule", "step", "bubble", "in flight", "messages", "")]
    inf = float("inf")
    for one in sorted(tables, key=lambda t: inf if t.step_ns is None else t.step_ns):
        problems = one.verdict.problems
        rows.append((
            one.name, words.duration(one.step_ns), words.percent(one.bubble_fraction),
            str(max(one.verdict.in_flight, default=0)), str(one.num_messages),
            problems[0].line() if problems else "",
        ))  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return "\n".join(
        "  ".join((f"{row[0]:<{widths[0]}}", *(f"{row[i]:>{widths[i]}}" for i in range(1, 5)),
                   row[5])).rstrip()
        for row in rows
    )  # fmt: skip
