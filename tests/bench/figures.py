"""The one value a bench gives back, and the table line it becomes.

Convention: ``tests/bench/bench_<what>.py`` has ``main() -> list[Figure]``; ``make bench`` imports
each in a process of its own, in order of name, and prints one line per figure. A bench asserts
nothing: these are measurements on whatever machine this is, so a figure over its budget is printed
as ``over`` and the exit code stays 0. Only a bench that crashes makes ``make bench`` fail.

Times on shared machines wander by 5-10 % from block to block: measure *ratios*, both sides
interleaved in one run, and take medians.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number beside what it may be."""

    name: str
    """What was measured: ``record``, ``hub records in``."""
    value: float
    unit: str
    """``us``, ``ms``, ``%``, ``records/s``, …"""
    budget: float | None = None
    """In the same unit; None: shown for comparison only."""
    higher_is_better: bool = False
    """True for rates: then the budget is the least that is ok."""
    note: str = ""
    """How sure: the interval, the number of pairs, what it was compared with."""

    @property
    def ok(self) -> bool | None:
        """Within budget; None without one."""
        if self.budget is None:
            return None
        return self.value >= self.budget if self.higher_is_better else self.value <= self.budget

    def line(self) -> str:
        """The figure as one line of the table: name, measured, budget, ok or over."""
        sign = "≥" if self.higher_is_better else "≤"
        budget = "" if self.budget is None else f"{sign} {_number(self.budget)} {self.unit}"
        word = {True: "ok", False: "over", None: "-"}[self.ok]
        measured = f"{_number(self.value)} {self.unit}"
        return f"{self.name:<44} {measured:>20} {budget:>20}  {word:<5} {self.note}".rstrip()


HEADER = f"{'figure':<44} {'measured':>20} {'budget':>20}"


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
